"""P1: language models on binding prompts, each judged on its own; those that do the task give the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rotoscope.ledger.claim import as_constructed, claims
from rotoscope.ledger.claim_runs import ClaimRuns
from rotoscope.ledger.language_figures import NULLS, SUBJECT, USUAL, LanguageFigures
from rotoscope.ledger.language_figures import P_VALUE as SHUFFLED
from rotoscope.ledger.verdicts import (
    AS_IN_NULL,
    IN_PART,
    NOT,
    NOT_RUN,
    REPRODUCED,
    UNDECIDED,
    Finding,
    Outcome,
    beside_draws,
)
from rotoscope.runs.record import Proof
from rotoscope.stats.verdict import ENOUGH_DRAWS, LEAST_EFFECT

DOES_TASK = 0.5
"""A model that answers half of the prompts does their task."""
STRONG = 0.8
P_VALUE = 1e-4
DEPTHS = ("chat-32", "chat-64", "chat-256")
ROBUST = "start-32"
"""Not P1's setting; shown beside the others."""
NO_MODEL = "no figures of a language model are stored; give one with --model"
HALF_LOST, HEADS = 0.5, "other heads"


@dataclass(frozen=True)
class FigureRule:
    """A figure that must reach a limit, and lie beyond every null on that side."""

    figure: str
    limit: float
    sign: int = 1
    setting: str = USUAL
    nulls: tuple[str, ...] = NULLS

    def __call__(self, run: LanguageFigures) -> Finding:
        value = run.value(self.setting, self.figure)
        if np.isnan(value):
            return Finding("not measured", NOT_RUN)
        judged = [(null, run.verdicts.get((self.setting, self.figure, null))) for null in self.nulls]
        known = [(null, verdict) for null, verdict in judged if verdict is not None]
        met = bool(self.sign * value >= self.sign * self.limit)
        word, reason = beside_draws(met, [(value, verdict) for _, verdict in known], self.sign)
        if word == REPRODUCED and len(known) < len(judged):
            word, reason = UNDECIDED, _not_measured([null for null, verdict in judged if verdict is None])
        null = ", ".join(
            f"{name} {v.null_value:.2f} [{v.null_low:.2f}, {v.null_high:.2f}]" for name, v in known
        )
        return Finding(f"{value:.2f}", word, null, reason)


def _not_measured(nulls: list[str]) -> str:
    return f"without a null nothing is reproduced, and not measured: {', '.join(nulls)}"


def over_models(
    judge: Callable[[LanguageFigures], Finding], setting: str = USUAL
) -> Callable[[ClaimRuns], Finding]:
    """Every model judged; the verdict is that of the models that do the task of a setting."""

    def compute(runs: ClaimRuns) -> Finding:
        models = runs.language_models()
        if not models:
            return Finding("", NOT_RUN, note=NO_MODEL)
        values, nulls, verdicts, notes = [], [], [], []
        for run in models:
            finding, right = judge(run), run.right(setting)
            if np.isnan(right):
                values.append(f"{run.name}: not measured")
                continue
            values.append(f"{run.name} ({right:.2f} right): {finding.value}, {finding.verdict}")
            nulls.append(f"{run.name}: {finding.null}" if finding.null else "")
            notes.append(f"{run.name}: {finding.note}" if finding.note else "")
            if right >= DOES_TASK:
                verdicts.append(finding.verdict)
        if all(np.isnan(run.right(setting)) for run in models):
            return Finding("; ".join(values), NOT_RUN)
        if not verdicts:
            notes.insert(0, f"no model that was measured answers {DOES_TASK:.0%} of the prompts")
        return Finding(
            "; ".join(values),
            together(verdicts),
            "; ".join(filter(None, nulls)),
            "; ".join(filter(None, notes)),
        )

    return compute


def together(verdicts: list[str]) -> str:
    """One verdict on the models that do the task: all alike, or in part where some show it."""
    if not verdicts:
        return UNDECIDED
    if len(set(verdicts)) == 1:
        return verdicts[0]
    if {REPRODUCED, IN_PART} & set(verdicts):
        return IN_PART
    return next(word for word in (UNDECIDED, AS_IN_NULL, NOT, NOT_RUN) if word in verdicts)


def with_depth(figure: str) -> Callable[[LanguageFigures], Finding]:
    """A difference between the halves of the layers, at every list length at which the model does the task."""

    def judge(run: LanguageFigures) -> Finding:
        measured = [name for name in (*DEPTHS, ROBUST) if not np.isnan(run.value(name, figure))]
        findings = {name: FigureRule(figure, 0.0, setting=name)(run) for name in measured}
        texts = [f"{_setting(name)} {findings[name].value} ({findings[name].verdict})" for name in measured]
        counted = [name for name in measured if name != ROBUST and run.right(name) >= DOES_TASK]
        judged = [findings[name].verdict for name in counted or [USUAL] if name in findings]
        nulls = "; ".join(f"{_setting(name)}: {findings[name].null}" for name in measured)
        return Finding(", ".join(texts) or "not measured", together(judged) if judged else NOT_RUN, nulls)

    return judge


def _setting(name: str) -> str:
    front, _, pairs = name.partition("-")
    return f"{pairs} facts" + (", start token only" if front == "start" else "")


def significance(run: LanguageFigures) -> Finding:
    """The p-value under shuffles, which no draw of either null may reach."""
    value = run.value(USUAL, SHUFFLED)
    if np.isnan(value):
        return Finding("not measured", NOT_RUN)
    draws = {name: run.draws(USUAL, SHUFFLED, name) for name in NULLS}
    known = {name: p_values for name, p_values in draws.items() if p_values}
    word, reason = REPRODUCED, ""
    if value > P_VALUE:
        word = NOT
    elif any(min(p_values) <= P_VALUE for p_values in known.values()):
        word = AS_IN_NULL
    elif len(known) < len(NULLS):
        word, reason = UNDECIDED, _not_measured([name for name in NULLS if name not in known])
    elif min(map(len, known.values())) < ENOUGH_DRAWS:
        word, reason = UNDECIDED, f"fewer than {ENOUGH_DRAWS} draws of a null"
    null = ", ".join(f"{name} p = {min(values):.0e} to {max(values):.0e}" for name, values in known.items())
    return Finding(f"p = {value:.0e}", word, null, reason)


def peaks(run: LanguageFigures) -> Finding:
    """Heads are chosen on half of the prompts, and their peaks looked at on the others."""
    stays, follows = (FigureRule(name, 0.9, nulls=("random",))(run) for name in ("peak stays", "peak follows"))
    value = f"stays in {stays.value}, follows in {follows.value} of the other prompts"
    null = f"stays {stays.null}; follows {follows.null}"
    words = {stays.verdict, follows.verdict}
    word = (
        stays.verdict
        if len(words) == 1
        else next(w for w in (NOT_RUN, NOT, UNDECIDED, AS_IN_NULL) if w in words)
    )
    return Finding(value, word, null, stays.note or follows.note)


def middle_is_lost(run: LanguageFigures) -> Finding:
    """Whether answers about facts near the ends are likelier."""
    rows = run.figures[(run.figures["setting"] == "places") & (run.figures["null"] == SUBJECT)]
    if rows.empty:
        return Finding("not measured", NOT_RUN)
    trend = rows.set_index("figure").loc["log_likelihood"]
    low, high = (trend["value"] + end * 1.96 * trend["error"] for end in (-1, 1))
    attended = run.value("places", "asked_attention")
    value = f"rank correlation {trend['value']:.2f} [{low:.2f}, {high:.2f}], of the attention on the fact {attended:.2f}"
    drawn = ", ".join(f"{x:.2f}" for x in run.draws("places", "log_likelihood", "random"))
    beside = FigureRule("log_likelihood", 0.0, setting="places", nulls=("random",))(run)
    word, reason = beside.verdict, beside.note
    if low <= 0:
        word, reason = (
            (NOT, "") if high < 2 * LEAST_EFFECT else (UNDECIDED, "the interval holds no trend and more")
        )
    return Finding(value, word, f"fresh weights {drawn}" if drawn else "", reason)


def slow_half_matters(run: LanguageFigures) -> Finding:
    """What symbolic heads lose without either half of their frequencies, beside random heads of the same layers."""
    slow, fast = (run.value("gating", f"loss without {half} half") for half in ("slow", "fast"))
    if np.isnan(slow):
        was_run = (run.accuracy["setting"] == "gating").any()
        return Finding("no symbolic head", NOT) if was_run else Finding("not measured", NOT_RUN)
    specific = FigureRule("loss without slow half", HALF_LOST, setting="gating", nulls=(HEADS,))(run)
    spares = FigureRule("loss without fast half", HALF_LOST, -1, setting="gating", nulls=(HEADS,))(run)
    value = f"{slow:.2f} of what there is to lose goes without the slow half, {fast:.2f} without the fast half"
    word = specific.verdict if specific.verdict in (REPRODUCED, NOT) else UNDECIDED
    if fast >= slow:
        word = NOT
    elif word != REPRODUCED and spares.verdict == REPRODUCED:
        word = IN_PART
    null = f"random heads of the same layers: slow {specific.null}; fast {spares.null}"
    return Finding(value, word, null, specific.note)


def rebuilt(runs: ClaimRuns) -> Outcome:
    """The model's own attention after a permutation of its input, against what was read out once."""
    proofs = {run.name: run.run.proof or Proof() for run in runs.language_models()}
    texts = [
        f"{name}: {p.layers} layers, largest difference {p.largest_difference or 0:.0e}"
        for name, p in proofs.items()
    ]
    held = [p.layers > 0 and (p.largest_difference or 0) <= 1e-4 for p in proofs.values()]
    return Outcome("; ".join(texts), bool(held) and all(held), note="" if held else NO_MODEL)


def exclusion_in_heads(runs: ClaimRuns) -> Outcome:
    """Both sides of Theorem 1, on every head and prompt."""
    shares = {run.name: run.value(USUAL, "share of the exclusion bound") for run in runs.language_models()}
    value = "; ".join(f"{name}: largest share of the bound {share:.2f}" for name, share in shares.items())
    met = bool(shares) and all(share <= 1 + 1e-5 for share in shares.values())
    return Outcome(value, met, note="" if shares else NO_MODEL)


FIGURES: dict[str, Callable[[LanguageFigures], Finding]] = {
    "p1-anticorrelation": FigureRule("correlation", -STRONG, -1),
    "p1-slow-frequencies": FigureRule("slow planes pure symbolic", 0.5),
    "p1-fast-frequencies": FigureRule("fast planes pure positional", 0.5),
    "p1-fastest-frequency": FigureRule("fastest plane both", 0.5),
    "p1-planes": FigureRule("heads lean like their planes", 0.7),
    "p1-profiles": FigureRule("pure heads lean like their planes", 0.9),
    "p1-vectors": FigureRule("keys alike", 0.9, nulls=("random",)),
    "p1-correlation-p": significance,
    "p1-depth-positional": with_depth("positional decline"),
    "p1-depth-symbolic": with_depth("symbolic rise"),
    "p1-traces": peaks,
}
CLAIMS = claims(
    {
        "p1-metric": as_constructed(rebuilt),
        "p1-exclusion-heads": as_constructed(exclusion_in_heads),
        **{name: over_models(judge) for name, judge in FIGURES.items()},
        "p1-middle": over_models(middle_is_lost, "places"),
        "p1-gating": over_models(slow_half_matters, "gating"),
    }
)
