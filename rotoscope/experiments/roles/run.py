"""What each layer of a multi-hop model does: where it attends, where the answer is, and what can be read there.

Three measurements that do not lean on one another:

- **attention**: the share each head puts on itself, on the token pointed at (Index, Retrieval), and further along the path;
- **arrival**, causal: from layer l on, one position of the path may attend to itself only. The first l from which the
  model still answers right is where the answer has arrived there;
- **flow**: a linear probe in closed form asks which token along the path can be read off the state. It is linear
  because the next layer reads states linearly, it is fitted on other sequences than those it is judged on, and the same
  probe on an untrained model of the same shape says what the probe itself can do.

The idealised composition to compare with is P2's: Index (or Retrieval) h times, then Reflexive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from rotoscope.errors import TaskError
from rotoscope.experiments.roles.result import Roles, ideal_hop
from rotoscope.lab.checkpoints import describe_multihop, load_multihop, sequences_for
from rotoscope.lab.gptj import GPTJ, GPTJShape
from rotoscope.models.loading import Subject
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Depths
from rotoscope.progress import progress_bar
from rotoscope.runs.run import Run
from rotoscope.shapes import Bool, Float, Int, Tensor
from rotoscope.tasks.multihop import pointed_at, solve
from rotoscope.tasks.multihop_frames import MultiHop, MultiHops

HELD_OUT = 2_000_000
"""Rows of the task from here on were seen by no training run."""
RIDGE = 1e-3
AT_ONCE = 128
"""Sequences in a run: few enough for what lies between two operations to stay in the cache."""


def find_roles(
    subject: str | Path | torch.nn.Module | Subject | tuple[Any, Any],
    *,
    inputs: int = 1000,
    fitted: int = 8000,
    seed: int = 0,
    device: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
) -> Roles:
    """Which layer does Index, Retrieval or Reflexive, and how the answer travels, on `inputs` fresh sequences."""
    subject = load_multihop(subject, device)
    config = subject.model.config
    samples = sequences_for(config, inputs, seed=seed, first=HELD_OUT).to(subject.device)
    others = sequences_for(config, fitted, seed=seed, first=2 * HELD_OUT).to(subject.device)
    settings = describe_multihop(subject, samples, inputs=inputs, fitted=fitted, seed=seed)
    run = Run(Roles, settings, out, overwrite=overwrite, device=subject.device.type)
    run.record.warnings += subject.caveats
    if run.finished is not None:
        return run.finished
    kinds = sorted(int(h) for h in samples.hops.unique())
    work = sum(kinds) + 3
    depths = Depths(HeadReader(subject.model))
    with progress_bar("roles", work, show_progress) as bar:
        tables = {"attention": _attention(depths.reader, samples)}
        bar.advance()
        parts = []
        for hops in kinds:
            of_hops = samples[samples.hops == hops]
            for step in range(hops):
                for layer, right in enumerate(blocked(depths, of_hops, step)):
                    row = {"hops": hops, "path_index": step, "layer": layer}
                    parts.append({**row, "accuracy": right, "inputs": len(of_hops)})
                bar.advance()
        tables["arrival"] = pd.DataFrame(parts)
        trained = Probes.fit(depths, others).judge(depths, samples)
        bar.advance()
        fresh = GPTJ.initialise(GPTJShape.from_config(config), seed, subject.device)
        blank = Depths(HeadReader(fresh.to_transformers()))
        untrained = Probes.fit(blank, others).judge(blank, samples)
        bar.advance()
        keys = ["layer", "hops", "path_index"]
        tables["flow"] = _with_null(trained.flow, untrained.flow, "accuracy", [*keys, "ahead"])
        tables["agreement"] = _with_null(trained.agreement, untrained.agreement, "agreement", keys)
    run.add("tables", tables)
    return run.finish()


def _with_null(trained: pd.DataFrame, null: pd.DataFrame, column: str, keys: list[str]) -> pd.DataFrame:
    beside = null.rename(columns={column: f"null_{column}"})
    return trained.merge(beside[[*keys, f"null_{column}"]], on=keys)


def attention_of(reader: HeadReader, tokens: Int[Tensor, "batch n"]) -> Float[Tensor, "layers batch heads n n"]:
    """Every head's attention weights at every position."""
    layers: list[Tensor] = []
    reader.read(tokens, tuple(range(tokens.shape[1])), lambda layer: layers.append(layer.attention()))
    return torch.stack(layers)


def _attention(reader: HeadReader, samples: MultiHops) -> pd.DataFrame:
    """Mean attention of the positions that point on, by layer, head and hop count, over what they could look at."""
    most = samples.path.shape[1] - 1
    names = ["on_self", "on_pointed", *(f"on_{k}_ahead" for k in range(2, most + 1))]
    rows = []
    for chunk in _chunks(samples):
        weights = attention_of(reader, chunk.tokens)  # [layers, batch, heads, n, n]
        for step in range(most):
            asks = chunk.hops > step
            places = chunk.path[asks, step]
            count = torch.arange(int(asks.sum()), device=places.device)
            from_places = weights[:, asks][:, count, :, places]  # [count, layers, heads, n]
            for ahead, name in enumerate(names[: most - step + 1]):
                reaches = chunk.hops[asks] >= step + ahead
                place = chunk.path[asks, step + ahead].clamp(min=0)
                share = from_places[count, :, :, place] * reaches[:, None, None]  # [count, layers, heads]
                for hops in chunk.hops[asks].unique().tolist():
                    alike = chunk.hops[asks] == hops
                    mass = share[alike].sum(0).cpu()
                    for layer in range(mass.shape[0]):
                        for head in range(mass.shape[1]):
                            rows.append(
                                (layer, head, hops, step, name, float(mass[layer, head]), int(alike.sum()))
                            )
    table = pd.DataFrame(rows, columns=["layer", "head", "hops", "path_index", "what", "mass", "inputs"])
    sums = table.groupby(["layer", "head", "hops", "path_index", "what"])[["mass", "inputs"]].sum()
    wide = (sums["mass"] / sums["inputs"]).unstack("what").reindex(columns=names).fillna(0.0)
    return (
        wide.assign(inputs=sums["inputs"].groupby(level=[0, 1, 2, 3]).first())
        .reset_index()
        .rename_axis(columns=None)
    )


def _chunks(samples: MultiHops) -> list[MultiHops]:
    return [samples[k : k + AT_ONCE] for k in range(0, len(samples), AT_ONCE)]


def blocked(depths: Depths, samples: MultiHops, step: int) -> list[float]:
    """Accuracy when, from layer 0, 1, ... on, the path's position `step` may attend to itself only."""
    layers = depths.reader.layers
    right = [0] * (layers + 1)
    for chunk in _chunks(samples):
        rows, places = torch.arange(len(chunk), device=chunk.hops.device), chunk.path[:, step]
        alone = torch.ones(len(chunk), samples.length, samples.length, dtype=torch.bool, device=places.device)
        alone[rows, places] = False
        alone[rows, places, places] = True
        for first, entering in enumerate(depths.states(chunk.tokens)):
            logits = depths.enter(chunk.tokens, first, entering, visible=dict.fromkeys(range(layers), alone))
            right[first] += int((logits[:, 0].argmax(-1) == chunk.answer).sum())
    return [count / len(samples) for count in right]


class Probes:
    """Linear read-outs, one per layer and distance: which token stands so many hops ahead on the path?"""

    def __init__(self, weights: Float[Tensor, "layers ahead width_and_one vocabulary"]) -> None:
        self.weights = weights

    @classmethod
    def fit(cls, depths: Depths, samples: MultiHops) -> Probes:
        """Least squares from states (and a constant) to one-hot tokens, slightly damped."""
        states, tokens, known, _ = _path_states(depths, samples)  # [layers, rows, width + 1], [rows, ahead]
        vocabulary = len(samples.vocabulary)
        weights = []
        for state in states.double():
            per_distance = []
            for ahead in range(tokens.shape[1]):
                x = state[known[:, ahead]]
                y = torch.nn.functional.one_hot(tokens[known[:, ahead], ahead], vocabulary).double()
                gram = x.T @ x
                gram += (
                    RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
                )
                per_distance.append(torch.linalg.solve(gram, x.T @ y))
            weights.append(torch.stack(per_distance))
        return cls(torch.stack(weights).float())

    def read(self, states: Float[Tensor, "layers rows width_and_one"]) -> Int[Tensor, "layers rows ahead"]:
        """The token each state decodes to at every distance."""
        return torch.einsum("lrw,lawv->lrav", states, self.weights).argmax(-1)

    def judge(self, depths: Depths, samples: MultiHops) -> Judged:
        """How often each read-out is right, and how often the farthest one that is right is the ideal one."""
        states, tokens, known, positions = _path_states(depths, samples)
        right = (self.read(states) == tokens) & known  # [layers, rows, ahead]
        hops, step = positions.T.tolist()
        farthest = farthest_right(right)
        ideal = torch.tensor(
            [
                [ideal_hop(samples.task, layer, h, m) for h, m in zip(hops, step, strict=True)]
                for layer in range(len(states))
            ],
            device=farthest.device,
        )
        agrees = (farthest == ideal).float().cpu()
        flow, agreement = [], []
        for h in sorted(set(hops)):
            for m in range(h):
                alike = (positions[:, 0] == h) & (positions[:, 1] == m)
                for layer in range(len(states)):
                    agreement.append((layer, h, m, float(agrees[layer, alike.cpu()].mean()), int(alike.sum())))
                    for ahead in range(h - m + 1):
                        flow.append((layer, h, m, ahead, float(right[layer, alike, ahead].float().mean())))
        return Judged(
            pd.DataFrame(flow, columns=["layer", "hops", "path_index", "ahead", "accuracy"]),
            pd.DataFrame(agreement, columns=["layer", "hops", "path_index", "agreement", "inputs"]),
        )


@dataclass(frozen=True)
class Judged:
    """What probes found."""

    flow: pd.DataFrame
    agreement: pd.DataFrame


def farthest_right(right: Bool[Tensor, "... ahead"]) -> Int[Tensor, "..."]:
    """The largest distance whose token can be read; -1 where none can."""
    distance = torch.arange(right.shape[-1], device=right.device)
    return torch.where(right, distance, -1).amax(-1)


def trace(
    subject: str | Path | torch.nn.Module | Subject | tuple[Any, Any],
    tokens: str | Sequence[str] | None = None,
    *,
    hops: int | None = None,
    fitted: int = 4000,
    seed: int = 0,
    device: str | None = None,
) -> Trace:
    """The flow of information through one input, of your own or drawn: P2's Fig. 3 for any sequence."""
    subject = load_multihop(subject, device)
    config, depths = subject.model.config, Depths(HeadReader(subject.model))
    others = sequences_for(config, fitted, seed=seed, first=2 * HELD_OUT).to(subject.device)
    if tokens is None:
        most_hops = max(others.settings["hops"]) if hops is None else hops
        sample = sequences_for(config, 1, seed=seed, first=HELD_OUT, hops=(most_hops,))[0]
    else:
        sample = solve(others.task, tokens.split() if isinstance(tokens, str) else tokens)
    ids = {word: k for k, word in enumerate(others.vocabulary)}
    unknown = [word for word in sample.tokens if word not in ids]
    if unknown:
        raise TaskError(f"'{unknown[0]}' is no token of the {others.task} task this model was trained on")
    row = torch.tensor([[ids[word] for word in sample.tokens]], device=subject.device)
    chains = _chains(pointed_at(replace(others[:1], tokens=row))[0].tolist(), others.path.shape[1] - 1)
    states = _with_constant(depths.states(row)[:, 0])
    read = Probes.fit(depths, others).read(states)  # [layers + 1, n, ahead]
    cells = []
    for layer in range(read.shape[0]):
        for place, chain in enumerate(chains):
            right = [k for k, other in enumerate(chain) if int(read[layer, place, k]) == int(row[0, other])]
            ahead = max(right, default=None)
            word = None if ahead is None else sample.tokens[chain[ahead]]
            cells.append(
                {"layer": layer, "position": place, "ahead": ahead, "token": word, "reachable": len(chain) - 1}
            )
    weights = attention_of(depths.reader, row)[:, 0].cpu()  # [layers, heads, n, n]
    answer = others.vocabulary[int(depths.reader.read(row).argmax())]
    return Trace(sample, answer, pd.DataFrame(cells), weights)


def _chains(points: list[int], most: int) -> list[list[int]]:
    """From every position along the pointers: itself, the token pointed at, and so on."""
    chains = []
    for place in range(len(points)):
        chain = [place]
        while len(chain) <= most and points[chain[-1]] not in (-1, chain[-1]):
            chain.append(points[chain[-1]])
        chains.append(chain)
    return chains


@dataclass(frozen=True)
class Trace:
    """One input: which token the state decodes to at every layer and position, and every head's attention."""

    sequence: MultiHop
    answered: str
    cells: pd.DataFrame
    """By (layer, position): how many hops ahead the state is, as far as can be read, and the token there."""
    attention: Float[Tensor, "layers heads n n"]


def _path_states(depths: Depths, samples: MultiHops) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """States before the first and after every layer at all positions of all paths.

    Returns states [layers + 1, rows, width + 1] (with a constant), the tokens [rows, ahead] along the rest of the path,
    which of them exist, and (hops, place on the path) of every row.
    """
    most = samples.path.shape[1] - 1
    states, tokens, known, positions = [], [], [], []
    for chunk in _chunks(samples):
        layers = depths.states(chunk.tokens)  # [layers + 1, batch, n, width]
        for step in range(most + 1):  # the answer's own place too: there only the token itself can be read
            asks = chunk.hops >= step
            rows = torch.arange(len(chunk), device=chunk.hops.device)[asks]
            states.append(layers[:, rows, chunk.path[asks, step]])
            ahead = (step + torch.arange(most + 1, device=rows.device)).clamp(max=most)
            places = chunk.path[asks][:, ahead]
            exists = (step + torch.arange(most + 1, device=rows.device))[None] <= chunk.hops[asks, None]
            tokens.append(chunk.tokens[asks].gather(1, places.clamp(min=0)))
            known.append(exists)
            positions.append(torch.stack((chunk.hops[asks], torch.full_like(rows, step)), dim=1))
    inputs = _with_constant(torch.cat(states, dim=1))
    return inputs, torch.cat(tokens), torch.cat(known), torch.cat(positions)


def _with_constant(states: Float[Tensor, "... width"]) -> Float[Tensor, "... width_and_one"]:
    return torch.cat((states, torch.ones_like(states[..., :1])), dim=-1)
