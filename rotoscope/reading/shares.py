"""Models that several processes share, head by head: tensor parallelism as transformers does it.

Every process runs the whole prompt through its own part of every layer, and its attention modules hold some of the heads. So
each process reads, proves and scores its own heads; here their numbers become those of the whole model, and the tables of all
processes one. All of them must come here together, in the same order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import distributed

from rotoscope.errors import ModelError, UnprovenError
from rotoscope.shapes import Tensor

ORDER = ("layer", "query_position", "prompt", "head")
"""How the rows of a table with heads are ordered, as far as it has these columns."""
Tables = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class Share:
    """Which heads of every layer a process has. All of them, where it is the only one."""

    rank: int = 0
    ranks: int = 1
    starts: tuple[int, ...] = ()
    """Of every layer, the number that its first head here has in the whole model."""
    counts: tuple[tuple[int, ...], ...] = ()
    """Heads of every layer on every rank that count: of a layer that all have, those of the first rank."""

    @property
    def alone(self) -> bool:
        return self.ranks == 1

    def local(self, heads: frozenset[tuple[int, int]]) -> frozenset[tuple[int, int]]:
        """Heads of the whole model by the numbers that they have here; those of others are left out."""
        if self.alone:
            return heads
        found = ((layer, head - self.starts[layer]) for layer, head in heads)
        return frozenset((layer, head) for layer, head in found if 0 <= head < self.counts[layer][self.rank])

    def key_heads(self, layer: int, here: int) -> tuple[slice, int]:
        """Which key heads of the whole model are these, and how many it has."""
        if self.alone or self.counts[layer][0] == sum(self.counts[layer]):
            return slice(0, here), here
        return slice(self.rank * here, (self.rank + 1) * here), self.ranks * here

    def tables(self, own: Mapping[str, pd.DataFrame]) -> Tables:
        """The tables of all processes, heads in the order of the whole model; what is not of heads comes from the first."""
        if self.alone:
            return dict(own)
        of_heads = {name: self._numbered(table) for name, table in own.items() if "head" in table}
        gathered = [_read(part) for part in _all_bytes(_written(of_heads), self.ranks)]
        names = dict.fromkeys(name for part in gathered for name in part)
        made: Tables = {}
        for name in names:
            parts = [part[name] for part in gathered if name in part]
            whole = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
            keys = [key for key in ORDER if key in whole]
            made[name] = whole.sort_values(keys, kind="stable", ignore_index=True)
        return {name: made.get(name, own.get(name)) for name in dict.fromkeys([*own, *made])}

    def _numbered(self, table: pd.DataFrame) -> pd.DataFrame:
        layers = table["layer"].to_numpy()
        counted = np.array([counts[self.rank] for counts in self.counts])[layers]
        mine = table[table["head"].to_numpy() < counted]
        starts = np.array(self.starts)[mine["layer"].to_numpy()]
        return mine.assign(head=(mine["head"].to_numpy() + starts).astype(table["head"].dtype))

    def mean_over_heads(self, layer: int, mean: Tensor) -> Tensor:
        """The mean over all heads of a layer from that over the heads here."""
        if self.alone:
            return mean
        counts = self.counts[layer]
        whole = mean * (counts[self.rank] / sum(counts))
        distributed.all_reduce(whole)
        return whole

    def all_heads(self, layer: int, of_heads: Tensor) -> Tensor:
        """Numbers [batch, heads] of all heads of a layer from those of the heads here."""
        if self.alone or self.counts[layer][0] == sum(self.counts[layer]):
            return of_heads
        parts = [of_heads.new_empty(len(of_heads), count) for count in self.counts[layer]]
        distributed.all_gather(parts, of_heads.contiguous())
        return torch.cat(parts, dim=1)

    def largest(self, number: float | None) -> float | None:
        """The largest number that any process has."""
        if self.alone or number is None:
            return number
        return max(float(part.decode()) for part in _all_bytes(repr(number).encode(), self.ranks))

    def from_first(self, tables: Mapping[str, pd.DataFrame]) -> Tables:
        """The tables that the first process gives."""
        if self.alone:
            return dict(tables)
        return _read(_all_bytes(_written(dict(tables)) if self.rank == 0 else b"", self.ranks)[0])

    def words_of_first(self, words: list[str]) -> list[str]:
        """The words that the first process says."""
        if self.alone:
            return words
        return _all_bytes("\n".join(words).encode() if self.rank == 0 else b"", self.ranks)[0].decode().split()


def is_shared(model: Any) -> bool:
    """Whether other processes hold other heads of a model."""
    return (getattr(model, "_tp_size", None) or 1) > 1


def share_of(model: Any, head_counts: list[int]) -> Share:
    """What this process has of a model in whose attention modules so many heads were found."""
    if not is_shared(model):
        return Share()
    ranks, rank = distributed.get_world_size(), distributed.get_rank()
    if ranks != model._tp_size:
        raise ModelError(
            f"{ranks} processes hold a model that is shared by {model._tp_size} of them; start as many as share it"
        )
    every = [np.frombuffer(part, dtype=np.int64) for part in _all_bytes(np.array(head_counts).tobytes(), ranks)]
    found = np.stack(every, axis=1)  # [layers, ranks]
    heads = getattr(model.config.get_text_config(), "num_attention_heads", None)
    starts, counts = [], []
    for layer, here in enumerate(found):
        if (here == heads).all():  # nobody has split this layer
            here = np.where(np.arange(ranks) == 0, here, 0)
        elif here.sum() != heads:
            raise UnprovenError(
                f"layer {layer}: {ranks} processes hold {here.tolist()} of its {heads} heads, so their numbers are not known"
            )
        starts.append(int(here[:rank].sum()))
        counts.append(tuple(int(count) for count in here))
    return Share(rank, ranks, tuple(starts), tuple(counts))


def check_started() -> None:
    """Refuse to share a model where there is nobody to share it with."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        raise ModelError(
            "tensor parallelism shares a model between processes, and this one is alone; start several: torchrun "
            "--nproc-per-node 2 -m rotoscope profile MODEL --tensor-parallel"
        )


def first_to_speak() -> bool:
    """Whether this process is the one that says and writes something, as far as its environment tells."""
    return os.environ.get("RANK", "0") == "0"


def sharing_options() -> dict[str, Any]:
    """What `from_pretrained` is told, by its newer name or by the older one."""
    try:
        from transformers.distributed import DistributedConfig

        return {"distributed_config": DistributedConfig(tp_plan="auto")}
    except (ImportError, TypeError):
        return {"tp_plan": "auto"}


def _written(tables: Mapping[str, pd.DataFrame]) -> bytes:
    """Tables as Arrow's own stream: a list of names, then one after the other."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("name", pa.string()), ("table", pa.binary())])) as stream:
        for name, table in tables.items():
            inner = pa.BufferOutputStream()
            whole = pa.Table.from_pandas(table, preserve_index=False)
            with pa.ipc.new_stream(inner, whole.schema) as writer:
                writer.write_table(whole)
            parts = [pa.array([name]), pa.array([inner.getvalue().to_pybytes()], pa.binary())]
            stream.write_batch(pa.record_batch(parts, names=["name", "table"]))
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _read(written: bytes) -> Tables:
    import pyarrow as pa

    rows = pa.ipc.open_stream(written).read_all().to_pylist()
    return {row["name"]: pa.ipc.open_stream(row["table"]).read_all().to_pandas() for row in rows}


def _all_bytes(own: bytes, ranks: int) -> list[bytes]:
    """What every process says, in their order."""
    where = torch.device("cuda" if distributed.get_backend() == "nccl" else "cpu")
    said = torch.frombuffer(bytearray(own), dtype=torch.uint8).to(where) if own else torch.empty(0, dtype=torch.uint8, device=where)  # fmt: skip
    lengths = [torch.zeros(1, dtype=torch.int64, device=where) for _ in range(ranks)]
    distributed.all_gather(lengths, torch.tensor([len(said)], device=where))
    longest = max(int(length) for length in lengths)
    padded = torch.zeros(longest, dtype=torch.uint8, device=where)
    padded[: len(said)] = said
    parts = [torch.empty_like(padded) for _ in range(ranks)]
    distributed.all_gather(parts, padded)
    return [part[: int(length)].cpu().numpy().tobytes() for part, length in zip(parts, lengths, strict=True)]
