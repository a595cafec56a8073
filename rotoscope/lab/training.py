"""Training GPT-J on the multi-hop tasks: P2's model, its last-token loss, and one schedule.

The same code runs on a CPU and on a GPU; there the whole step, from picking the batch to the optimiser, is captured once
as a CUDA graph and replayed. A run is a folder that can be killed at any moment: it goes on from its last saved state, on
a CPU to the same weights bit for bit.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from rotoscope.errors import RotoscopeError
from rotoscope.lab.checkpoints import save_checkpoint
from rotoscope.lab.gptj import GPTJ, GPTJShape
from rotoscope.lab.threads import one_thread
from rotoscope.progress import progress
from rotoscope.reading.devices import pick_device
from rotoscope.results.folder import RunFolder, read_table, replace_file, versions, write_table
from rotoscope.results.training import Training
from rotoscope.shapes import Tensor
from rotoscope.tasks.multihop import MULTIHOP, MultiHops

__all__ = ["PRESETS", "Evaluation", "TrainSettings", "Trainer", "train"]

Tables = dict[str, pd.DataFrame]
STATES_KEPT = 2
AT_ONCE = 4096
SMALL = 64
"""Up to this width a CPU trains faster with one thread."""


@dataclass(frozen=True)
class TrainSettings:
    """Everything that decides what a run gives. The default is P2's experiment."""

    task: str = "number"
    seed: int = 0
    hops: int = 4
    target: int = 8
    window: int = 8
    letters: int = 120
    """Of the number task."""
    alphabet: int = 8
    """Of the letter task, as are the digits."""
    digits: int = 8
    train_sequences: int = 432_000
    validation_sequences: int = 2_400
    test_sequences: int = 45_600
    layers: int = 12
    heads: int = 1
    width: int = 128
    rotary: int | None = None
    """Rotating dimensions of a head; None: all of them."""
    nope: tuple[int, ...] = ()
    positions: int = 8192
    dropout: float = 0.1
    steps: int = 22_500
    batch: int = 192
    learning_rate: float = 1e-4
    warmup: int = 750
    betas: tuple[float, float] = (0.95, 0.999)
    weight_decay: float = 1e-4
    watch_every: int = 50
    """Steps between evaluations, as long as `watch_closely` has not been reached; `watch_later` afterwards."""
    watch_closely: int = 6_750
    watch_later: int = 250
    checkpoints: int = 8
    """Models kept along the way, the first and the last included, spaced more densely early on."""

    def __post_init__(self) -> None:
        if self.task not in MULTIHOP:
            raise RotoscopeError(f"unknown task '{self.task}'; choose {' or '.join(MULTIHOP)}")
        for name in ("train_sequences", "validation_sequences", "test_sequences", "steps", "batch", "layers"):
            if getattr(self, name) < 1:
                raise RotoscopeError(f"{name} must be at least 1, found {getattr(self, name)}")
        if self.batch > self.train_sequences:
            raise RotoscopeError(f"a batch of {self.batch} is more than the {self.train_sequences} sequences")
        if min(self.watch_every, self.watch_later) < 1 or self.checkpoints < 2:
            raise RotoscopeError(
                "evaluations need at least one step between them, and two checkpoints are kept"
            )
        self.sequences("test", count=1)  # impossible sizes are refused before anything is written
        self.shape(vocabulary=2)

    @classmethod
    def of(cls, described: dict[str, Any]) -> TrainSettings:
        """Read them back from a run's description."""
        names = {field.name for field in dataclasses.fields(cls)}
        known: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in described.items() if k in names
        }
        return cls(**known)

    def sequences(
        self,
        part: Literal["train", "validation", "test"],
        device: str | torch.device = "cpu",
        count: int | None = None,
    ) -> MultiHops:
        """One of the three parts: rows of one dataset that do not overlap."""
        sizes = {
            "train": self.train_sequences,
            "validation": self.validation_sequences,
            "test": self.test_sequences,
        }
        first = {"train": 0, "validation": sizes["train"], "test": sizes["train"] + sizes["validation"]}[part]
        own = (
            {"letters": self.letters}
            if self.task == "number"
            else {"alphabet": self.alphabet, "digits": self.digits}
        )
        return MULTIHOP[self.task](
            sizes[part] if count is None else min(count, sizes[part]),
            hops=self.hops,
            target=self.target,
            window=self.window,
            seed=self.seed,
            first=first,
            device=device,
            **own,
        )

    def shape(self, vocabulary: int) -> GPTJShape:
        """The sizes of the model these settings train."""
        head = self.width // max(self.heads, 1)
        return GPTJShape(
            vocabulary,
            self.layers,
            self.heads,
            self.width,
            head if self.rotary is None else self.rotary,
            tuple(self.nope),
            self.positions,
            self.dropout,
        )

    @property
    def evaluations(self) -> list[int]:
        """The steps after which the model is looked at."""
        closely = min(self.watch_closely, self.steps)
        points = {*range(0, closely + 1, self.watch_every), *range(closely, self.steps + 1, self.watch_later)}
        return sorted(points | {self.steps})

    @property
    def kept(self) -> list[int]:
        """The evaluations whose models are kept: about half as far each time, counted from the end."""
        points = self.evaluations
        wanted = [0.0, *(self.steps * 0.5**k for k in range(self.checkpoints - 1))]
        return sorted({min(points, key=lambda point, w=goal: abs(point - w)) for goal in wanted})  # type: ignore[misc]

    @property
    def saved(self) -> list[int]:
        """The evaluations at which the state is saved to go on from: about forty."""
        points, last = [], 0
        for point in self.evaluations[1:]:
            if point - last >= self.steps / 40 or point == self.steps:
                points.append(point)
                last = point
        return points


PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "mini": {
        "hops": 2,
        "target": 6,
        "window": 6,
        "train_sequences": 32_000,
        "validation_sequences": 1_000,
        "test_sequences": 4_000,
        "letters": 24,
        "layers": 4,
        "width": 64,
        "positions": 1024,
        "dropout": 0.0,
        "steps": 600,
        "batch": 128,
        "learning_rate": 2e-3,
        "warmup": 100,
        "watch_every": 50,
        "watch_closely": 600,
    },
}


@dataclass(frozen=True)
class Evaluation:
    """What `on_evaluate` is shown: a model in training, and sequences it has not been trained on."""

    step: int
    model: GPTJ
    held_out: MultiHops
    settings: TrainSettings


OnEvaluate = Callable[[Evaluation], Tables | None]


def train(
    task: Literal["number", "letter"],
    preset: Literal["paper", "mini"] = "paper",
    *,
    out: str | Path | None = None,
    on_evaluate: OnEvaluate | None = None,
    device: str | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
    **changes: Any,
) -> Training:
    """Train one model. `changes` are fields of `TrainSettings`.

    `on_evaluate` is called after the steps of `TrainSettings.evaluations`; tables it returns (with a column `step`)
    become tables of the run, and its own `settings`, where it has any, part of the run's. With `out`, checkpoints are
    kept and a killed run goes on where it was.
    """
    if preset not in PRESETS:
        raise RotoscopeError(f"unknown preset '{preset}'; choose {' or '.join(PRESETS)}")
    known = {field.name for field in dataclasses.fields(TrainSettings)} - {"task"}
    if not set(changes) <= known:
        raise RotoscopeError(
            f"unknown training setting '{sorted(set(changes) - known)[0]}'; there are {sorted(known)}"
        )
    settings = TrainSettings(task, **(PRESETS[preset] | changes))
    where = pick_device(device)
    described = json.loads(json.dumps(asdict(settings))) | {"preset": preset}
    watched = getattr(on_evaluate, "settings", None)
    if watched:
        described["watched"] = watched
    folder = RunFolder(out, Training.kind, described, overwrite=overwrite) if out is not None else None
    if folder is not None and folder.complete:
        return Training.open(folder.path)
    if folder is not None:
        folder.begin()
    began = time.perf_counter()
    small = where.type == "cpu" and settings.width <= SMALL
    run = _Run(settings, where, folder, on_evaluate)
    with one_thread(small), progress(f"training {task}", settings.steps, show_progress) as bar:
        bar.advance(run.trainer.step)
        for point in settings.evaluations:
            if point < run.trainer.step or (point == run.trainer.step and run.resumed):
                continue
            bar.advance(point - run.trainer.step)
            run.to(point)
    tables = run.tables()
    tables["test"] = run.test()
    details = {
        "timings": {"total_s": time.perf_counter() - began, **run.seconds},
        "device": _named(where),
        "parameters": sum(weight.numel() for weight in run.trainer.model.weights.values()),
        "resumed_at": run.resumed,
        "warnings": run.warnings + _caveats(tables["test"]),
    }
    if folder is None:
        result = Training({"settings": described, "versions": versions(), **details}, tables)
    else:
        result = Training(folder.finish(tables, **details), tables, folder.path)
    result.model = run.trainer.model
    return result


class Trainer:
    """A model, its optimiser and the order of its data: one step after the other."""

    def __init__(self, settings: TrainSettings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.data = settings.sequences("train", device)
        self.model = GPTJ.initialise(settings.shape(len(self.data.vocabulary)), settings.seed, device)
        for weight in self.model.weights.values():
            weight.requires_grad_(True)
        self.rate = torch.tensor(0.0, device=device)
        graphed = device.type == "cuda"
        self.optimiser = torch.optim.AdamW(
            self.model.weights.values(),
            lr=self.rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
            capturable=graphed,
        )
        self.order = _order(settings).to(device)
        self.losses = torch.zeros(settings.steps, device=device)
        self.counter = torch.zeros(1, dtype=torch.long, device=device)
        self.within = torch.arange(settings.batch, device=device)
        self.step = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def run_to(self, step: int) -> None:
        """Train up to a step. Dropout is seeded anew here, so that a resumed run draws the same."""
        if self.device.type == "cuda" and self.graph is None:
            with _seeded(0, self.device):  # what the recording draws must not shift what the steps draw
                self._capture()
        with _seeded(self.settings.seed * 1_000_003 + self.step, self.device):
            for _ in range(self.step, step):
                if self.graph is not None:
                    self.graph.replay()
                else:
                    self.optimiser.zero_grad(set_to_none=True)
                    self._one()
        self.step = step

    def _one(self) -> None:
        """One step, from the batch to the new weights; everything it needs to know is in tensors."""
        settings, now = self.settings, self.counter
        rows = self.order[now * settings.batch + self.within]
        logits = self.model.logits(self.data.tokens[rows], dropout=settings.dropout)
        loss = F.cross_entropy(logits, self.data.answer[rows])
        loss.backward()
        rise = (now + 1) / (settings.warmup + 1)
        fall = (settings.steps - now) / max(settings.steps - settings.warmup, 1)
        self.rate.copy_(settings.learning_rate * torch.minimum(rise, fall)[0])
        self.optimiser.step()
        self.losses.index_copy_(0, now, loss.detach()[None])
        now += 1

    def _capture(self) -> None:
        """Record one step as a CUDA graph. The steps that warm it up are undone."""
        before = {name: value.clone() for name, value in self.state().items()}
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            aside = torch.cuda.Stream(self.device)
            aside.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(aside):
                for _ in range(3):
                    self.optimiser.zero_grad(set_to_none=True)
                    self._one()
            torch.cuda.current_stream(self.device).wait_stream(aside)
            self.optimiser.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._one()
        finally:
            torch.set_float32_matmul_precision(precision)
        self.restore(before)
        self.graph = graph

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on: weights, moments, losses so far."""
        state = {"losses": self.losses, "counter": self.counter}
        for name, weight in self.model.weights.items():
            state[f"weight.{name}"] = weight.detach()
            for key in ("step", "exp_avg", "exp_avg_sq"):
                moment = self.optimiser.state[weight].get(key)
                state[f"adamw.{key}.{name}"] = (
                    torch.zeros_like(weight if key != "step" else torch.zeros(())) if moment is None else moment
                ).detach()
        return state

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go back to a state, in place: a captured graph keeps working on the same memory."""
        self.losses.copy_(state["losses"])
        self.counter.copy_(state["counter"])
        for name, weight in self.model.weights.items():
            weight.data.copy_(state[f"weight.{name}"])
            moments = self.optimiser.state[weight]
            for key in ("step", "exp_avg", "exp_avg_sq"):
                stored = state[f"adamw.{key}.{name}"]
                if key in moments:
                    moments[key].copy_(stored)
                else:
                    moments[key] = stored.to(self.device, copy=True)
        self.step = int(self.counter)

    @torch.no_grad()
    def accuracy(self, samples: MultiHops) -> pd.DataFrame:
        """Right answers by number of hops."""
        right = torch.cat(
            [
                self.model.logits(samples.tokens[k : k + AT_ONCE]).argmax(-1) == samples.answer[k : k + AT_ONCE]
                for k in range(0, len(samples), AT_ONCE)
            ]
        )
        rows = []
        for hops in range(1, self.settings.hops + 1):
            of = samples.hops == hops
            rows.append({"hops": hops, "accuracy": float(right[of].float().mean()), "inputs": int(of.sum())})
        return pd.DataFrame(rows)


class _Run:
    """A training run in its folder: evaluations, kept checkpoints, states to go on from."""

    def __init__(
        self,
        settings: TrainSettings,
        device: torch.device,
        folder: RunFolder | None,
        on_evaluate: OnEvaluate | None,
    ) -> None:
        self.settings, self.folder, self.on_evaluate = settings, folder, on_evaluate
        self.trainer = Trainer(settings, device)
        self.held_out = settings.sequences("validation", device)
        self.pieces: dict[str, list[pd.DataFrame]] = {}
        self.fresh: dict[str, list[pd.DataFrame]] = {}
        """Rows since the last saved state."""
        self.seconds = {"training_s": 0.0, "accuracy_s": 0.0, "watching_s": 0.0, "saving_s": 0.0}
        self.warnings: list[str] = []
        self.resumed = self._resume() if folder is not None else None

    def to(self, point: int) -> None:
        """Train up to an evaluation, look at the model, and save what must survive."""
        before = self.trainer.step
        with self._timed("training_s"):
            self.trainer.run_to(point)
        with self._timed("accuracy_s"):
            metrics = self.trainer.accuracy(self.held_out)
        metrics.insert(0, "step", point)
        recent = self.trainer.losses[before:point]
        metrics["loss"] = float(recent.mean()) if point > before else math.nan
        metrics["learning_rate"] = float(self.trainer.rate)
        self._add("metrics", metrics)
        if self.on_evaluate is not None:
            with self._timed("watching_s"), torch.no_grad():
                evaluation = Evaluation(point, self.trainer.model, self.held_out, self.settings)
                for name, table in (self.on_evaluate(evaluation) or {}).items():
                    self._add(name, table)
        if self.folder is not None:
            with self._timed("saving_s"):
                self._log(metrics)
                if point in self.settings.kept:
                    save_checkpoint(self.folder.path / f"checkpoint-{point}", self.trainer.model, self.held_out)
                if point in self.settings.saved:
                    self._save(point)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        if self.trainer.device.type == "cuda":
            torch.cuda.synchronize(self.trainer.device)
        self.seconds[name] += time.perf_counter() - began

    def _add(self, name: str, table: pd.DataFrame) -> None:
        self.pieces.setdefault(name, []).append(table)
        self.fresh.setdefault(name, []).append(table)

    def tables(self) -> Tables:
        return {name: pd.concat(parts, ignore_index=True) for name, parts in self.pieces.items()}

    def test(self) -> pd.DataFrame:
        return self.trainer.accuracy(self.settings.sequences("test", self.trainer.device))

    def _log(self, metrics: pd.DataFrame) -> None:
        """One line per evaluation, for people and tools that watch a run while it is going."""
        assert self.folder is not None
        first = metrics.iloc[0]
        line = {
            "step": int(first["step"]),
            "loss": None if math.isnan(first["loss"]) else float(first["loss"]),
            "learning_rate": float(first["learning_rate"]),
            "accuracy": {str(h): a for h, a in zip(metrics["hops"], metrics["accuracy"], strict=True)},
        }
        with (self.folder.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _save(self, point: int) -> None:
        assert self.folder is not None
        for name, parts in self.fresh.items():
            write_table(self.folder.piece(f"{name}-{point:08d}.parquet"), pd.concat(parts, ignore_index=True))
        self.fresh = {}
        state = {name: value.cpu().contiguous() for name, value in self.trainer.state().items()}
        state["seconds"] = torch.tensor(list(self.seconds.values()), dtype=torch.float64)
        replace_file(self._state(point), lambda file: save_file(state, file))
        for old in self._states()[:-STATES_KEPT]:
            self._state(old).unlink(missing_ok=True)

    def _state(self, point: int) -> Path:
        assert self.folder is not None
        return self.folder.piece(f"state-{point:08d}.safetensors")

    def _states(self) -> list[int]:
        assert self.folder is not None
        return sorted(int(p.stem.split("-")[1]) for p in self.folder.pieces.glob("state-*.safetensors"))

    def _resume(self) -> int | None:
        """Go on from the last state that can be read; a damaged one is named and the one before it used."""
        assert self.folder is not None
        for point in reversed(self._states()):
            try:
                state = load_file(self._state(point))
                self.trainer.restore(state)
                pieces = self._pieces_up_to(point)
            except Exception as damage:  # safetensors and torch each have their own errors for a broken file
                self.warnings.append(
                    f"the state saved after step {point} could not be read ({type(damage).__name__}: {damage}); "
                    "the one before it was used"
                )
                self._state(point).unlink(missing_ok=True)
                continue
            self.pieces = pieces
            if "seconds" in state:  # what the work took before it was stopped
                self.seconds = dict(zip(self.seconds, state["seconds"].tolist(), strict=True))
            self._trim_log(point)
            return point
        self.trainer = Trainer(self.settings, self.trainer.device)
        self._trim_log(-1)
        return None

    def _pieces_up_to(self, point: int) -> dict[str, list[pd.DataFrame]]:
        assert self.folder is not None
        found: dict[str, list[pd.DataFrame]] = {}
        for file in sorted(self.folder.pieces.glob("*.parquet")):
            name, step = file.stem.rsplit("-", 1)
            if int(step) <= point:
                found.setdefault(name, []).append(read_table(file))
            else:
                file.unlink()
        return found

    def _trim_log(self, point: int) -> None:
        assert self.folder is not None
        log = self.folder.path / "metrics.jsonl"
        if not log.exists():
            return
        kept = []
        for line in log.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= point:
                    kept.append(line)
            except ValueError:  # a line that was being written when the run was killed
                break
        replace_file(log, lambda file: file.write_text("".join(line + "\n" for line in kept), encoding="utf-8"))


def _order(settings: TrainSettings) -> Tensor:
    """Which training sequence comes when: every epoch in an order of its own."""
    needed, rows, made = settings.steps * settings.batch, settings.train_sequences, []
    for epoch in range(math.ceil(needed / rows)):
        generator = torch.Generator().manual_seed(settings.seed * 7_919 + epoch)
        made.append(torch.randperm(rows, generator=generator))
    return torch.cat(made)[:needed]


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from a seed inside, those of the caller untouched."""
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


def _named(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _caveats(test: pd.DataFrame) -> list[str]:
    unlearned = test[test["accuracy"] < 0.95]
    if not len(unlearned):
        return []
    said = ", ".join(f"{row.hops} hops {row.accuracy:.0%}" for row in unlearned.itertuples())
    return [f"the model has not learned the whole task ({said}): its heads show training half-way"]
