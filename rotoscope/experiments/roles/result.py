"""What the layers of a multi-hop model do, and how the answer travels through them."""

from __future__ import annotations

import pandas as pd

from rotoscope.runs.result import SavedRun, SummaryTable, Table

ROLE = 0.9
ARRIVED = 0.95


class Roles(SavedRun):
    """Attention, arrival of the answer, information flow. Places on the path count from 0, the last token."""

    kind = "roles"

    @property
    def task(self) -> str:
        """The multi-hop task of the model: number or letter."""
        return str(self.run.settings["task"])

    attention = Table(
        "By (layer, head, hops, path_index): mean attention on itself, on the token pointed at, and "
        "further ahead."
    )
    arrival = Table(
        "By (hops, path_index, layer): accuracy when that position attends to itself only from that layer on."
    )
    flow = Table(
        "By (layer, hops, path_index, ahead): how often a linear probe reads the token so many hops "
        "ahead. Layer 0 is the embedding, layer l the state after l layers; `null_accuracy` is that of an "
        "untrained model."
    )
    agreement = Table(
        "By (layer, hops, path_index): how often what can be read is what the idealised composition puts there."
    )

    def table(self) -> pd.DataFrame:
        """One row per head: its attention at positions that point on, and the role it has earned.

        A head is called Index (number task) or Retrieval (letter task) if it puts at least .9 of its attention
        on the token pointed at, Reflexive if on itself; otherwise it has no name, and where it looks stands
        beside it.
        """
        shares = [name for name in self.attention if name.startswith("on_")]
        weights = self.attention["inputs"]
        weighted = self.attention[shares].mul(weights, axis=0).assign(inputs=weights)
        keys = [self.attention["layer"], self.attention["head"]]
        sums = weighted.groupby(keys).sum()
        table = sums[shares].div(sums["inputs"], axis=0)
        pointing = "Index" if self.task == "number" else "Retrieval"
        table["along_path"] = table[shares].sum(axis=1)
        table["role"] = [
            pointing if row["on_pointed"] >= ROLE else "Reflexive" if row["on_self"] >= ROLE else "none"
            for _, row in table.iterrows()
        ]
        mean = self.agreement.groupby("layer")[["agreement", "null_agreement"]].mean()
        after = mean.rename(index=lambda layer: layer - 1)  # layer l of the flow is the state after layer l - 1
        return table.join(after, on="layer").reset_index()

    def arrivals(self) -> pd.DataFrame:
        """For every place on the path: when the answer has arrived causally, and when it is decodable.

        `arrived_before_layer` is the first layer from which blocking the place costs nothing; 0 means that the
        place never needed to look at anything, so nothing that matters passes through it alone; one more than
        the number of layers means that the answer never arrives, the model being wrong without any blocking.
        `readable_after` is the number of layers after which a probe reads the answer there, from then on. One
        hop a layer would make that at least the number of hops left: where it is fewer, some layer did more
        than one (`shortcut`).
        """
        rows = []
        for (hops, step), track in self.arrival.groupby(["hops", "path_index"]):
            fails = track.loc[track["accuracy"] < ARRIVED, "layer"]
            left = hops - step
            flow = self.flow
            read = flow[(flow["hops"] == hops) & (flow["path_index"] == step) & (flow["ahead"] == left)]
            unread = read.loc[read["accuracy"] < ARRIVED, "layer"]
            after = int(unread.max()) + 1 if len(unread) else 0
            decodable = after <= int(read["layer"].max())
            rows.append(
                {
                    "hops": hops,
                    "path_index": step,
                    "hops_left": left,
                    "arrived_before_layer": int(fails.max()) + 1 if len(fails) else 0,
                    "readable_after": after if decodable else None,
                    "shortcut": decodable and after < left,
                }
            )
        return pd.DataFrame(rows).astype({"readable_after": "Int64"})

    def summaries(self) -> list[SummaryTable]:
        """What every head does, and the way of the answer."""
        needs = ("attention", "agreement")
        roles = "What every head does, and the role it has earned"
        return [
            SummaryTable(roles, self.table, needs),
            SummaryTable("When the answer arrives", self.arrivals, needs),
        ]

    def sentences(self) -> list[str]:
        """Whether the answer travels hop by hop."""
        order = "in the order of the hops" if self.in_hop_order() else "not in the order of the hops"
        return [f"The answer reaches the places along the path {order}."]

    @property
    def answer_arrives(self) -> pd.Series:
        """By hop count: the first layer from which the last token needs to look at nothing but itself."""
        arrivals = self.arrivals()
        return arrivals[arrivals["path_index"] == 0].set_index("hops")["arrived_before_layer"]

    def in_hop_order(self) -> bool:
        """Whether the answer reaches the places along each path in the order of the hops."""
        table = self.arrivals().sort_values(["hops", "path_index"], ascending=[True, False])
        return bool(
            table.groupby("hops")["arrived_before_layer"].apply(lambda s: s.is_monotonic_increasing).all()
        )

    def __repr__(self) -> str:
        arrives = ", ".join(f"{h}: {layer}" for h, layer in self.answer_arrives.items())
        return f"Roles({self.task}; layers after which the answer has arrived, by hops {arrives})"


def ideal_hop(task: str, layers_done: int, hops: int, step: int) -> int:
    """How many hops ahead of the path's position `step` its state is, in the idealised composition.

    Index copies letters only: the answer arrives at once, `hops - step` layers after it set out. Retrieval copies
    every pair, one hop further in every layer.
    """
    left = hops - step
    if task == "number":
        return left if layers_done >= left else 0
    return min(layers_done, left)
