"""What is pinned: every case makes its tables through the public surface or the command line."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import rotoscope as rs
from tests.pins.compare import Table, Tables, Tolerance
from tests.pins.models import ARCHITECTURES, tiny, tokenizer, tokens

ROOT = Path(__file__).parents[2]

HEAD = ("layer", "head", "tau")
PAIR = ("positional_score", "symbolic_score")
ALIKE = (
    "centred_positional_score",
    "centred_symbolic_score",
    "equal_symbol_positional_score",
    "equal_symbol_symbolic_score",
)
"""Scores of blocks of one length, and of swaps between equal symbols: not every prompt has them."""
SCORES = (
    *PAIR,
    "renormalised_positional_score",
    "renormalised_symbolic_score",
    "effective_swaps",
    "entropy",
    "relative_entropy",
    "swapped_mass",
    "logit_variance",
    "d_pos",
    "d_sym",
)
BOUNDS = ("positional_score_low", "positional_score_high", "symbolic_score_low", "symbolic_score_high")
PERMUTED = ("input_positional_score", "input_symbolic_score", "input_class")

AMPLIFIED = Tolerance(2e-4, 2e-4, "at tau = 1e-4 the rounding of attention weights moves the weights of swaps")
TRAINED = Tolerance(5e-3, 5e-3, "rounding grows from training step to training step")
PRINTED = Tolerance(5e-6, 0.0, "numbers are compared as they are printed; what is smaller is rounding")


@dataclass(frozen=True)
class Case:
    """How the tables of a case are made in a scratch folder, and how far numbers may be from the golden ones."""

    make: Callable[[Path], Tables]
    tolerance: Tolerance = field(default_factory=Tolerance)


def run(folder: Path, *arguments: str) -> Any:
    """The result of a command, opened again."""
    command = [sys.executable, "-m", "rotoscope", *arguments, "--out", str(folder / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return rs.open(folder / "run")


def heads_of(profile: Any, more: tuple[str, ...] = ALIKE) -> Table:
    return Table(profile.heads, HEAD, (*SCORES, *BOUNDS, "head_class", *more))


def frequencies_of(profile: Any) -> Table:
    return Table(profile.frequencies, (*HEAD, "frequency_id"), PAIR)


def smollm2_recall(_: Path) -> Tables:
    subject = rs.load("smollm2", device="cpu")
    prompts = rs.tasks.recall(subject, length=8, count=3)
    profile = rs.profile(
        subject,
        prompts,
        null="none",
        frequencies=[(0, 1), (5, 3), (18, 6)],
        examples=False,
        show_progress=False,
    )
    return {"heads": heads_of(profile), "frequencies": frequencies_of(profile)}


def smollm2_binding(_: Path) -> Tables:
    subject = rs.load("smollm2", device="cpu")
    prompts = rs.tasks.binding(subject, pairs=8, count=3)
    profile = rs.profile(subject, prompts, null="none", examples=False, show_progress=False)
    return {"heads": heads_of(profile, more=())}


def number(folder: Path) -> Tables:
    options = ("--null", "gaussian", "--null-draws", "3", "--frequencies", "--no-examples", "--no-page")
    profile = run(folder, "profile", "number", "--prompts", "4", *options)
    statistics = profile.statistics()
    return {
        "heads": heads_of(profile),
        "frequencies": frequencies_of(profile),
        "statistics": Table(statistics, ("statistic",), ("value", "low", "high", "null_value", "verdict")),
    }


def number_permuted(_: Path) -> Tables:
    """With input swaps, which tell symbolic heads from carried ones."""
    profile = rs.profile(
        "number", rs.tasks.number(4), null="none", input_swaps=16, examples=False, show_progress=False
    )
    return {"heads": heads_of(profile, more=(*ALIKE, *PERMUTED))}


def letter(_: Path) -> Tables:
    profile = rs.profile(
        "letter",
        rs.tasks.letter(4),
        tau=[1e-4, 1e-2],
        null="none",
        known=True,
        examples=False,
        show_progress=False,
    )
    return {"heads": heads_of(profile)}


def tiny_profile(name: str, _: Path) -> Tables:
    profile = rs.profile(
        tiny(name),
        tokens=tokens(2, 20),
        tau=[1e-4, 1e-1],
        frequencies=True,
        null="none",
        examples=False,
        show_progress=False,
    )
    frequencies = profile.frequencies
    chosen = frequencies[frequencies["head"] < 2]
    return {"heads": heads_of(profile), "frequencies": Table(chosen, (*HEAD, "frequency_id"), PAIR)}


def depths(_: Path) -> Tables:
    found = rs.depths(
        "number", rs.tasks.number(4), at=(0, 6, "own"), swaps=16, null="none", show_progress=False
    )
    heads = found.heads.assign(depth=found.heads["depth"].astype(str))
    values = (*PAIR, *BOUNDS, "swapped_mass", "depth_class")
    return {"heads": Table(heads, (*HEAD, "depth"), values)}


def small_subject() -> Any:
    return rs.load((tiny("llama"), tokenizer()), name="small")


def gate(_: Path) -> Tables:
    subject = small_subject()
    prompts = rs.tasks.repeats(subject, 8, 4)
    swept = rs.gate(subject, prompts, bands=2, groups=("all",), show_progress=False)
    closed = rs.gate(
        subject, prompts, remove="1-4", heads="0:1,1:2,2:3", controls=2, scores=True, show_progress=False
    )
    keys = ("condition", "action", "head_group", "draw", "source", "prompt")
    return {
        "sweep": Table(swept.conditions, keys, ("loss", "accuracy")),
        "conditions": Table(closed.conditions, keys, ("loss", "accuracy")),
        "effects": Table(
            closed.effects,
            ("condition", "head_group", "source", "measure"),
            ("effect", "low", "high", "null_value", "verdict"),
        ),
        "heads": Table(
            closed.gated_heads,
            ("layer", "head"),
            (*PAIR, "entropy", "positional_score_gated", "symbolic_score_gated", "entropy_gated"),
        ),
    }


def gate_number(folder: Path) -> Tables:
    gated = run(folder, "gate", "number", "--keep", "1-8", "--heads", "symbolic", "--prompts", "8", "--no-page")
    keys = ("condition", "action", "head_group", "draw", "source", "prompt")
    return {"conditions": Table(gated.conditions, keys, ("loss", "accuracy"))}


PLAN: dict[str, Any] = {"sources": ("repeats",), "prompts": 3, "length": 8, "show_progress": False}


def plan_cache(_: Path) -> Tables:
    plan = rs.plan.cache(
        small_subject(),
        keep=0.5,
        frontier=(0.25,),
        window=4,
        sinks=1,
        rankings=("far_task", "gradient", "gradient_rounds", "random"),
        random_draws=2,
        **PLAN,
    )
    return {
        "points": Table(
            plan.points,
            ("ranking", "draw", "kept_share", "purpose", "source", "prompt"),
            ("loss", "accuracy", "kept_heads"),
        ),
        "heads": Table(plan.heads, ("layer", "key_head"), ("streams", "place")),
        "scores": Table(plan.scores, ("ranking", "draw", "layer", "key_head"), ("number", "place")),
    }


def plan_rotation(_: Path) -> Tables:
    plan = rs.plan.rotation(
        small_subject(),
        planes=2,
        budgets=(4,),
        rankings=("effect", "norm", "fastest", "random"),
        random_draws=2,
        path_points=2,
        **PLAN,
    )
    return {
        "points": Table(
            plan.points, ("ranking", "draw", "planes", "purpose", "source", "prompt"), ("loss", "accuracy")
        ),
        "plan": Table(plan.plan, ("layer", "key_head", "frequency_id"), ("angle", "rank", "rotates")),
    }


def train(folder: Path) -> Tables:
    trained = run(folder, "train", "number", "--preset", "mini", "--steps", "50", "--no-page")
    watched = rs.dynamics(trained, show_progress=False)
    return {
        "metrics": Table(trained.metrics, ("step", "hops"), ("accuracy", "loss", "inputs")),
        "scores": Table(watched.scores, ("step", *HEAD), (*PAIR, "entropy", "swapped_mass")),
        "test": Table(trained.test, ("hops",), ("accuracy", "inputs")),
    }


def lengths(folder: Path) -> Tables:
    options = ("--lengths", "20", "40", "80", "--inputs", "12", "--no-page")
    measured = run(folder, "lengths", "number", *options)
    heads = measured.heads[(measured.heads["length"] == 80) & (measured.heads["input_id"] < 4)]
    keys = ("model", "length", "layer", "head", "input_id", "path_index")
    return {
        "accuracy": Table(
            measured.accuracy, ("model", "length", "hops"), ("accuracy", "low", "high", "inputs")
        ),
        "heads": Table(heads, keys, ("discrepancy", "gap", "attention")),
        "classes": Table(measured.classes, ("model", "layer", "head"), (*PAIR, "head_class", "dominant_angle")),
    }


def theory(folder: Path) -> Tables:
    statements = run(folder, "theory", "--no-page").statements
    return {"statements": Table(statements, ("name",), ("verdict",), ("figure",))}


def canonical(folder: Path) -> Tables:
    sizes = {"steps": 20, "evaluations": 2, "tested": 1024}
    measured = rs.experiments.canonical_experiments("all", "quick", out=folder, show_progress=False, **sizes)
    keys = ("experiment", "theta", "seed")
    return {
        "accuracy": Table(measured.accuracy, (*keys, "step"), ("accuracy",)),
        "scores": Table(measured.scores, keys, (*PAIR, "entropy")),
    }


def ledger(folder: Path) -> Tables:
    rows = run(folder, "reproduce", "--cost", "quick").rows
    return {"claims": Table(rows, ("id",), ("verdict",), ("our_value", "null_value"))}


def tensors(_: Path) -> Tables:
    """The public tensor functions, in float64 and over several temperatures."""
    dice = torch.Generator().manual_seed(0)
    query = torch.randn(2, 3, 4, 2, generator=dice, dtype=torch.float64)
    keys = torch.randn(2, 3, 9, 4, 2, generator=dice, dtype=torch.float64)
    angles = 10000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    logits = rs.counterfactual_logits(query, keys, angles, scale=0.5)
    moved = rs.counterfactual_logits(query, keys, angles, scale=0.5, query_position=20)
    hidden = logits.clone()
    hidden[..., :2, :] = -torch.inf
    scores = {
        "tokens": rs.swap_scores(logits, tau=[1e-4, 1e-2, 1.0]),
        "blocks": rs.swap_scores(logits, tau=[1e-4, 1e-2, 1.0], blocks=[(0, 2), (2, 4), (5, 7)]),
        "hidden": rs.swap_scores(hidden, tau=[1e-4, 1e-2, 1.0]),
        "float32": rs.swap_scores(logits.float(), tau=[1e-4, 1e-2, 1.0]),
    }
    by_tau = [
        flat(name, getattr(found, name), case)
        for case, found in scores.items()
        for name in ("positional", "symbolic", "effective_swaps")
    ]
    others = [
        flat(name, getattr(found, name), case)
        for case, found in scores.items()
        for name in ("entropy", "swapped_mass")
    ]
    bound = rs.exclusion(logits)
    excluded = [flat(name, getattr(bound, name), "logits") for name in ("variance", "d_pos", "d_sym")]
    made = [flat("logit", logits, "usual"), flat("logit", moved, "query at 20")]
    return {
        name: Table(pd.concat(parts, ignore_index=True), ("case", "name", "entry"), ("value",))
        for name, parts in {
            "swap_scores": by_tau + others,
            "exclusion": excluded,
            "counterfactual_logits": made,
        }.items()
    }


def flat(name: str, values: torch.Tensor, case: str) -> pd.DataFrame:
    numbers = values.double().flatten().tolist()
    return pd.DataFrame({"case": case, "name": name, "entry": range(len(numbers)), "value": numbers})


CASES: dict[str, Case] = {
    "ledger": Case(ledger, PRINTED),
    "lengths": Case(lengths, AMPLIFIED),
    "theory": Case(theory, PRINTED),
    "train": Case(train, TRAINED),
    "canonical": Case(canonical, TRAINED),
    "number": Case(number, AMPLIFIED),
    "gate-number": Case(gate_number),
    "smollm2-recall": Case(smollm2_recall, AMPLIFIED),
    "smollm2-binding": Case(smollm2_binding, AMPLIFIED),
    "number-permuted": Case(number_permuted, AMPLIFIED),
    "letter": Case(letter, AMPLIFIED),
    "depths": Case(depths, AMPLIFIED),
    "gate": Case(gate, AMPLIFIED),
    "plan-cache": Case(plan_cache),
    "plan-rotation": Case(plan_rotation),
    "tensors": Case(tensors),
    **{f"tiny-{name}": Case(partial(tiny_profile, name), AMPLIFIED) for name in ARCHITECTURES},
}
"""The longest first, so that two processes end at about the same time."""


def tables_of(name: str) -> Tables:
    """The tables of a case, made in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix=f"pins-{name}-") as folder:
        torch.manual_seed(0)
        return CASES[name].make(Path(folder))
