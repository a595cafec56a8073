"""How far a multi-hop model generalises: accuracy on longer inputs, what its heads do there, and what was predicted.

**Longer inputs**: the target window is extended in front of the sequence, so path and distances stay what they were and
only the number of tokens to be ignored grows.

**Heads**: at every position of the path, the head's largest logit minus the next (discrepancy), the logit of the right
token minus its best competitor (gap), and the attention on the right token. What that attention lacks, -log p, is split in
two: what the best competitor alone would cost, log(1 + e^-gap), and the rest, which many weak competitors cost
(dispersion).

**Prediction**, from the model at training length alone: queries and keys are taken there; a key of the target window is
set, by rotation, at every distance that longer inputs would have, and the attention it would draw is summed. An input is
predicted to fail at the first length at which the front tokens would draw more than half of the attention of some head
the answer needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from rotoscope.errors import TaskError
from rotoscope.experiments.lengths.result import Lengths, accuracy_row
from rotoscope.experiments.lengths.settings import LengthsSettings
from rotoscope.experiments.profile.run import profile
from rotoscope.experiments.roles.result import ARRIVED
from rotoscope.experiments.roles.run import HELD_OUT, blocked
from rotoscope.lab.checkpoints import Training, load_multihop, sequences_for
from rotoscope.lab.gptj import GPTJ
from rotoscope.models.devices import check_memory
from rotoscope.models.hub import find_checkpoints, named_step
from rotoscope.models.layer import LayerReading
from rotoscope.models.loading import Subject
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Depths
from rotoscope.progress import Progress, progress_bar
from rotoscope.runs.record import RUN, RunRecord, settings_hash
from rotoscope.runs.run import Run
from rotoscope.scores.classes import purity_classes
from rotoscope.scores.discrepancy import discrepancy
from rotoscope.shapes import Float, Tensor
from rotoscope.tasks.multihop_frames import MultiHops

LENGTHS = (17, 25, 50, 100, 200, 350, 850, 2000, 5000)
TOKENS = {"cpu": 120_000, "cuda": 4_000_000}
"""Tokens spent on each length: fewer inputs at the long end."""
FEWEST = 24
"""Inputs at any length, unless fewer are asked for."""
AT_ONCE = 20_000
"""Tokens that run through a model together."""
HEAD_LENGTHS = 850
"""Heads are looked at up to this length."""
HEAD_INPUTS = 48
CLASS_INPUTS = 200
"""Inputs on which the heads of a length and the classes of heads are measured."""


def measure_lengths(
    source: str | Path | torch.nn.Module | Subject | Mapping[str, Any] | Sequence[str | Path],
    settings: LengthsSettings | None = None,
    *,
    device: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    allow_missing: bool = False,
    show_progress: bool | None = None,
    **changes: Any,
) -> Lengths:
    """Accuracy, heads and prediction by length, for one multi-hop model or several.

    `source` is "number" or "letter", a model or checkpoint folder, a training run (all its checkpoints are taken), a list
    of those, or a mapping from names to them. `settings`, or fields of `LengthsSettings` given as keywords, say which
    lengths and how many inputs. `allow_missing` is that of `load`; what cannot fit memory is refused.
    """
    plan = LengthsSettings.make(settings, **changes)
    models = _models(source, device, allow_missing)
    first = next(iter(models.values()))
    chosen = plan.lengths or tuple(_fitting(models))
    for name, subject in models.items():
        shortest = sequences_for(subject.model.config, 1).length
        longest = int(subject.model.config.n_positions)
        if chosen[0] < shortest or chosen[-1] > longest:
            raise TaskError(
                f"lengths of {name} must lie between {shortest} and its {longest} positions, found {list(chosen)}"
            )
    for subject in models.values():
        purpose = f"the prediction from {plan.inputs:,} inputs"
        less = "use fewer inputs (--inputs)"
        check_memory(purpose, _kept_bytes(subject, plan.inputs), subject.device, less)
    described = {
        "models": {name: subject.fingerprint for name, subject in models.items()},
        **plan.stored(),
        "lengths": list(chosen),
    }
    run = Run(Lengths, described, out, overwrite=overwrite, device=first.device.type)
    run.record.warnings += [caveat for subject in models.values() for caveat in subject.caveats]
    if run.finished is not None:
        return run.finished
    # A run that goes on elsewhere spends as many tokens as where it was begun, so that every length has its inputs.
    tokens = run.record.details.setdefault("tokens", run.begun_details.get("tokens", tokens_on(first.device)))
    with progress_bar("lengths", len(models) * sum(chosen), show_progress) as bar:
        for name, subject in models.items():
            _Measured(run, name, subject, list(chosen), plan, tokens).measure(bar)
    return run.finish()


def tokens_on(device: torch.device) -> int:
    return TOKENS.get(device.type, TOKENS["cpu"])


def _fitting(models: dict[str, Subject]) -> list[int]:
    """The longest of the models' lengths in training, and the usual lengths between it and their positions."""
    shortest = max(sequences_for(subject.model.config, 1).length for subject in models.values())
    longest = min(int(subject.model.config.n_positions) for subject in models.values())
    return [shortest, *(n for n in LENGTHS if shortest < n <= longest)]


def stored_lengths() -> Lengths:
    """The measurements of eight models that come with rotoscope: two tasks, three seeds, and a shorter training."""
    return Lengths.open(Path(__file__).parents[2] / "stored" / "lengths")


def _kept_bytes(subject: Subject, inputs: int) -> int:
    """Queries and keys of all layers on all inputs, in float32: the prediction holds them together."""
    config = subject.model.config.get_text_config()
    tokens = sequences_for(config, 1).length
    return 4 * 2 * int(config.num_hidden_layers) * inputs * tokens * int(config.hidden_size)


def _models(source: Any, device: str | None, allow_missing: bool) -> dict[str, Subject]:
    named: Mapping[Any, Any]
    if isinstance(source, Mapping):
        named = source
    elif isinstance(source, (Subject, torch.nn.Module)):
        subject = load_multihop(source, device, allow_missing=allow_missing)
        return {subject.name: subject}
    elif isinstance(source, (list, tuple)):
        named = {model: model for model in source}
    elif Path(str(source)).is_dir() and not (Path(str(source)) / "config.json").is_file():
        place = Path(str(source))
        named = {f"{place.name} step {s}": model for s, model in find_checkpoints(place).items() if s > 0}
    else:
        named = {source: source}
    return {
        str(name): load_multihop(model, device, allow_missing=allow_missing) for name, model in named.items()
    }


@dataclass(frozen=True)
class _Measured:
    """One model, all lengths."""

    run: Run[Lengths]
    name: str
    subject: Subject
    lengths: list[int]
    settings: LengthsSettings
    tokens: int
    """Tokens spent on each length."""

    @property
    def fingerprint(self) -> str:
        """Which model this was when its measurement began."""
        return str(self.run.record.settings["models"][self.name])

    def measure(self, bar: Progress) -> None:
        depths = Depths(HeadReader(self.subject.model))
        # Thousands of tokens need attention that never holds n x n weights, which transformers' GPT-J has not.
        fast = GPTJ.from_transformers(self.subject.model)
        fast.prove(depths.reader)
        for n in self.lengths:
            self._piece("accuracy", lambda n=n: self._accuracy(fast, n), n)  # type: ignore[misc]
            if self.settings.heads and n <= HEAD_LENGTHS:
                self._piece("heads", lambda n=n: self._heads(depths.reader, n), n)  # type: ignore[misc]
            bar.advance(n)
        shown = self._sequences(CLASS_INPUTS, 0)
        self._piece("classes", lambda: head_classes(self.subject, shown))
        inputs = max(self._kinds, self.settings.inputs)  # at least one of every number of hops
        self._piece("predicted", lambda: predict(depths, self._sequences(inputs, 0), self.lengths[-1]))

    def _piece(self, table: str, make: Callable[[], pd.DataFrame], length: int = 0) -> None:
        """A table of this model, or what it has at one length."""
        about = {"model": self.name, "task": self._sequences(1, 0).task}
        name = settings_hash({"model": self.name})[:8]  # two names may stand for one model
        key = f"{name}-{self.fingerprint}-{table}-{length:06d}"
        self.run.piece(key, lambda: {table: make().assign(**about)})

    def _sequences(self, count: int, front: int) -> MultiHops:
        about = {"seed": self.settings.seed, "first": HELD_OUT, "front": front, "balanced": True}
        return sequences_for(self.subject.model.config, count, **about).to(self.subject.device)

    @property
    def _kinds(self) -> int:
        """How many numbers of hops there are."""
        return len(self._sequences(1, 0).settings["hops"])

    def _longer(self, n: int, most: int) -> MultiHops:
        kinds = self._kinds
        count = max(kinds, min(most, max(FEWEST, self.tokens // n)))
        return self._sequences(count - count % kinds, n - self._sequences(1, 0).length)

    @torch.no_grad()
    def _accuracy(self, model: GPTJ, n: int) -> pd.DataFrame:
        samples = self._longer(n, self.settings.inputs)
        at_once = max(1, AT_ONCE // n)
        right = torch.cat(
            [
                model.logits(samples.tokens[k : k + at_once]).argmax(-1) == samples.answer[k : k + at_once]
                for k in range(0, len(samples), at_once)
            ]
        )
        rows = []
        for hops in samples.settings["hops"]:
            with_hops = samples.hops == hops
            row = accuracy_row(int(right[with_hops].sum()), int(with_hops.sum()))
            rows.append({"length": n, "hops": hops, **row})
        return pd.DataFrame(rows)

    def _heads(self, reader: HeadReader, n: int) -> pd.DataFrame:
        """One row per layer, head, input and pointing position of the path."""
        samples = self._longer(n, HEAD_INPUTS)
        parts = [_gaps(reader, samples[k : k + 4], k).assign(length=n) for k in range(0, len(samples), 4)]
        return pd.concat(parts, ignore_index=True)


def _gaps(reader: HeadReader, samples: MultiHops, first: int = 0) -> pd.DataFrame:
    """Discrepancy, gap, attention on the token pointed at and its two losses, for every layer and pointing position.

    `first` is the number of the first input.
    """
    path = samples.path.clamp(min=0)
    places, index = path.unique(return_inverse=True)
    rows = []

    def visit(layer: LayerReading) -> None:
        everywhere = layer.real()  # [inputs, heads, places, n]
        for step in range(path.shape[1] - 1):
            asks = (samples.hops > step).nonzero()[:, 0]
            logits = everywhere[asks, :, index[asks, step]]
            target = path[asks, step + 1, None, None].expand(-1, logits.shape[1], 1)
            right = logits.gather(-1, target)
            others = logits.scatter(-1, target, -torch.inf)
            gap = right[..., 0] - others.amax(-1)
            lacking = logits.logsumexp(-1) - right[..., 0]  # -log of the attention on the right token
            alone = torch.nn.functional.softplus(-gap)
            values = torch.stack((discrepancy(logits), gap, (-lacking).exp(), alone, lacking - alone), dim=-1)
            about = {"hops": samples.hops[asks].cpu().numpy(), "input_id": first + asks.cpu().numpy()}
            for head in range(values.shape[1]):
                table = pd.DataFrame(values[:, head].cpu().numpy(), columns=list(HEAD_MEASURES))
                rows.append(table.assign(layer=layer.layer, head=head, path_index=step, **about))

    reader.read(samples.tokens, tuple(places.tolist()), visit)
    return pd.concat(rows, ignore_index=True)


HEAD_MEASURES = ("discrepancy", "gap", "attention", "gap_loss", "dispersion_loss")


def head_classes(subject: Subject, samples: MultiHops) -> pd.DataFrame:
    """What each head is at training length, and the angle of the plane it uses most."""
    plain: dict[str, Any] = {"null": "none", "examples": False, "show_progress": False}
    run = profile(subject, samples, frequencies=True, **plain)
    table = run.heads[["layer", "head", "positional_score", "symbolic_score", "swapped_mass"]]
    kinds = purity_classes(table["positional_score"], table["symbolic_score"])
    planes = run.frequencies
    strongest = planes.loc[planes.groupby(["layer", "head"])["max_logit"].idxmax()]
    training, steps = training_of(subject)
    return table.assign(
        head_class=kinds, dominant_angle=strongest["angle"].to_numpy(), training=training, trained_steps=steps
    )


def predict(depths: Depths, samples: MultiHops, longest: int) -> pd.DataFrame:
    """The length at which each input is predicted to fail, from queries and keys at training length.

    Needed are, at every position of the path, the layers before which the answer has not arrived there (found by
    blocking, as in `roles`). `fails_at` is infinite where nothing up to `longest` draws half of the attention.
    """
    layers: list[LayerReading] = []
    depths.reader.read(samples.tokens, tuple(range(samples.length)), layers.append)
    extra = longest - samples.length
    parts = []
    for hops in samples.settings["hops"]:
        rows = (samples.hops == hops).nonzero()[:, 0]
        fails_at = torch.full((len(rows),), torch.inf, dtype=torch.float64, device=rows.device)
        failing_layer = torch.full((len(rows),), -1, device=rows.device)
        for step in range(hops):
            accuracy = blocked(depths, samples[rows[:64]], step)
            fails = [layer for layer, right in enumerate(accuracy) if right < ARRIVED]
            for layer in range(min(max(fails) + 1, len(layers)) if fails and extra else 0):
                over = _front_share(layers[layer], samples, rows, step, extra) > 0.5  # [inputs, extra tokens]
                first = torch.where(over.any(1), over.long().argmax(1) + 1 + samples.length, torch.inf).double()
                failing_layer = torch.where(first < fails_at, layer, failing_layer)
                fails_at = torch.minimum(fails_at, first)
        table = {"fails_at": fails_at.cpu().numpy(), "layer": failing_layer.cpu().numpy()}
        parts.append(pd.DataFrame({"hops": hops, **table}))
    return pd.concat(parts, ignore_index=True)


def training_of(subject: Subject) -> tuple[str | None, int]:
    """Which training a model comes from, and after how many steps; of a model that does not say, None.

    Models of one size that began from one seed are of one training, whatever its budget was.
    """
    place = Path(str(getattr(subject.model, "name_or_path", "")))
    step = named_step(place.name)
    home = place if step is None else place.parent
    if place.name and (home / RUN).is_file():
        about = RunRecord.read(home)
        if about.kind == Training.kind:
            seed, layers, width = (about.settings.get(key) for key in ("seed", "layers", "width"))
            trained = int(about.settings.get("steps", 0)) if step is None else step
            return f"seed {seed}, {layers} layers of width {width}", trained
    return (None, 0) if step is None else (home.resolve().name, step)


def _front_share(
    layer: LayerReading, samples: MultiHops, rows: Tensor, step: int, extra: int
) -> Float[Tensor, "inputs extra"]:
    """The share of attention that 1, 2, ... front tokens would draw from the path's position `step`; the worst head.

    Front tokens lie on no path. Each stands for the mean over the target window's own keys but the answer's, set at its
    distance by rotation.
    """
    window, place = samples.settings["target"], samples.path[rows, step]
    answer = samples.path[rows].gather(1, samples.hops[rows, None])[:, 0]
    others = torch.arange(window, device=rows.device)[None] != answer[:, None]  # [inputs, window]
    planes, still = layer.layout.planes, layer.layout.remainder
    query = layer.query.flatten(1, 2)[rows, :, place, None]  # [inputs, heads, 1, d]
    keys = layer.keys.repeat_interleave(layer.query.shape[2], 1)[rows, :, :window]
    turning, fixed = zip(*(x.double().split((2 * planes, still), dim=-1) for x in (query, keys)), strict=True)
    (a, b), (c, d) = (x.unflatten(-1, (-1, 2)).unbind(-1) for x in turning)
    # The query turned by a distance, times a key: one part goes with its cosine, the other with its sine.
    parts = layer.scaling * torch.cat((a * c + b * d, a * d - b * c), dim=-1)
    constant = layer.scaling * (fixed[0] * fixed[1]).sum(-1)  # [inputs, heads, window]
    angles = layer.layout.angles.to(rows.device)
    front = []
    for k in range(len(rows)):
        # The nearest stands before the sequence.
        distance = place[k] + 1 + torch.arange(extra, device=place.device)
        phases = distance.double()[:, None] * angles
        logits = parts[k][:, others[k]] @ torch.cat((phases.cos(), phases.sin()), dim=-1).T
        front.append((logits + constant[k][:, others[k], None]).logsumexp(1) - math.log(max(window - 1, 1)))
    base = layer.real()[rows, :, place].logsumexp(-1).double()
    drawn = torch.logcumsumexp(torch.stack(front), dim=-1)  # [inputs, heads, extra]
    return torch.sigmoid(drawn - base[..., None]).amax(1)
