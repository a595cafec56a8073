"""What the layers of a multi-hop model do, and how the answer travels through them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from rotoscope.experiments.profile.run import profile
from rotoscope.lab.checkpoints import describe_multihop, load_multihop, sequences_for
from rotoscope.models.layer import LayerReading
from rotoscope.models.loading import Subject
from rotoscope.models.reader import HeadReader
from rotoscope.runs.result import SavedRun, SummaryTable, Table
from rotoscope.runs.run import Run
from rotoscope.stats.aggregate import HEAD, dominant_planes, plane_weights, weighted_id
from rotoscope.tasks.multihop_frames import MultiHops


def frequency_use(frequencies: pd.DataFrame, scaling: float) -> pd.DataFrame:
    """How much each head uses each frequency, from the frequencies of a profile.

    P2 leaves the weights undefined. `weight` takes the logits as the head attends with them; `product_weight`
    the plain products of query and key, before they are multiplied by `scaling`.
    """
    use = frequencies.groupby([*HEAD, "frequency_id"], as_index=False)[["angle", "max_logit"]].mean()
    weights = {"weight": 1.0, "product_weight": scaling}
    return use.assign(**{name: plane_weights(use, HEAD, factor) for name, factor in weights.items()})


EQUAL_WEIGHTS = 0.99
"""With so much of the largest entropy, weights over frequencies are all but equal, and no average is defined."""

TABLE_1 = {
    "number": (1, 2, 2, 2, 10, 39, 38, 38, 38, 37, 37, 38),
    "letter": (18, 32, 42, 37, 40, 38, 41, 38, 41, 39, 38, 40),
}
"""P2, Table 1: weighted-average frequency id per layer, of models with 64 frequencies."""
FREQUENCIES = 64


class Geometry(SavedRun):
    """Frequency use and vectors of a multi-hop model. Frequency ids count from 1, the fastest."""

    kind = "geometry"

    @property
    def task(self) -> str:
        """The multi-hop task of the model: number or letter."""
        return str(self.run.settings["task"])

    use = Table(
        "One row per (layer, head, frequency_id): largest logit over keys (mean over inputs) and its weight."
    )
    vectors = Table("Mean un-rotated query and key of every token in the dominant plane of every head.")

    def weighted_ids(self) -> pd.DataFrame:
        """The weighted-average frequency id of every head (P2's Table 1), and its dominant plane.

        `weighted_id` weighs by the logits the head attends with, `product_weighted_id` by the products before
        scaling.
        """
        top = dominant_planes(self.use, HEAD)
        columns = {
            "weighted_id": weighted_id(self.use, HEAD, self.use["weight"]),
            "product_weighted_id": weighted_id(self.use, HEAD, self.use["product_weight"]),
            "dominant_id": top["frequency_id"].astype(int),
            "dominant_angle": top["angle"],
        }
        return pd.DataFrame(columns).rename_axis(HEAD).reset_index()

    def summaries(self) -> list[SummaryTable]:
        """The frequencies in use."""
        return [
            SummaryTable(
                "Frequencies in use (ids count from 1), beside P2's Table 1",
                lambda: beside_table_1(self),
                ("use",),
            )
        ]

    def weight_entropy(self) -> pd.Series:
        """Of every head, the entropy of its weights over frequencies, relative to that of equal ones.

        Near 1 the weights say nothing: the weighted average is that of any model.
        """
        weights = self.use[self.use["frequency_id"] > 0].pivot_table(
            index=HEAD, columns="frequency_id", values="weight"
        )
        shares = weights.div(weights.sum(axis=1), axis=0)
        logs = np.log(shares.where(shares > 0, 1.0))
        return -(shares * logs).sum(axis=1) / np.log(shares.shape[1])

    def __repr__(self) -> str:
        ids = ", ".join(f"{x:.0f}" for x in self.weighted_ids()["weighted_id"])
        return f"Geometry({self.task}; weighted-average frequency ids {ids})"


# Which frequencies a multi-hop model uses, and what its queries and keys look like in the plane it uses most.


HELD_OUT = 3_000_000


def beside_table_1(run: Geometry) -> pd.DataFrame:
    """Our frequency ids with `paper_id` from P2's Table 1; missing for a model of another shape or task."""
    ids = run.weighted_ids()
    printed = TABLE_1.get(run.task, ())
    same_shape = len(printed) == len(ids) and run.use["frequency_id"].nunique() == FREQUENCIES
    return ids.assign(paper_id=list(printed) if same_shape else pd.array([pd.NA] * len(ids), dtype="Int64"))


def find_geometry(
    subject: str | Path | torch.nn.Module | Subject | tuple[Any, Any],
    *,
    inputs: int = 200,
    seed: int = 0,
    device: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
) -> Geometry:
    """Frequency use of every head at the last token, and mean query and key vectors by token in its dominant plane."""
    subject = load_multihop(subject, device)
    samples = sequences_for(subject.model.config, inputs, seed=seed, first=HELD_OUT)
    settings = describe_multihop(subject, samples, inputs=inputs, seed=seed)
    run = Run(Geometry, settings, out, overwrite=overwrite, device=subject.device.type)
    run.record.warnings += subject.caveats
    if run.finished is not None:
        return run.finished
    planes = profile(
        subject, samples, frequencies=True, null="none", examples=False, show_progress=show_progress
    ).frequencies
    config = subject.model.config
    use = frequency_use(planes, scaling=(config.n_embd // config.n_head) ** -0.5)
    run.add("tables", {"use": use, "vectors": _vectors(HeadReader(subject.model), samples, use)})
    return run.finish()


def _vectors(reader: HeadReader, samples: MultiHops, use: pd.DataFrame) -> pd.DataFrame:
    """Mean un-rotated query and key of every token, in the dominant plane of every head."""
    use = use[use["frequency_id"] > 0]
    dominant = use.loc[use.groupby(["layer", "head"])["max_logit"].idxmax()].set_index(["layer", "head"])
    tokens, parts = samples.tokens.cpu().flatten().numpy(), []

    def visit(layer: LayerReading) -> None:
        group = layer.query.shape[2]
        for head in range(layer.query.shape[1] * group):
            plane = int(dominant.loc[(layer.layer, head), "frequency_id"]) - 1
            query, key = layer.query[:, head // group, head % group], layer.keys[:, head // group]
            for kind, vectors in (("query", query), ("key", key)):
                points = vectors[..., 2 * plane : 2 * plane + 2].flatten(0, 1).cpu().numpy()
                rows = pd.DataFrame(points, columns=["re", "im"]).assign(token_id=tokens)
                groups = rows.groupby("token_id")[["re", "im"]]
                spread = groups.std(ddof=0).pow(2).sum(axis=1).pow(0.5)
                table = groups.mean().assign(spread=spread, count=groups.size()).reset_index()
                about = {"layer": layer.layer, "head": head, "frequency_id": plane + 1, "kind": kind}
                parts.append(pd.DataFrame(about, index=table.index).join(table))

    reader.read(samples.tokens, tuple(range(samples.length)), visit)
    table = pd.concat(parts, ignore_index=True)
    table["token"] = [samples.vocabulary[k] for k in table["token_id"]]
    return table


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
