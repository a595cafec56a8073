"""Which conclusions change with the prefix, with what is swapped, and with tau?

The papers fixed all three. Each row of the table is one setting, with the summary figures it gives and the
conclusions that come out differently from the base setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd

from rotoscope.analysis.profiling import profile
from rotoscope.errors import RotoscopeError, TaskError
from rotoscope.reading import load
from rotoscope.results.profile import Profile
from rotoscope.results.summary import figures
from rotoscope.settings import ProfileSettings
from rotoscope.tasks import PREFIXES, Prompts, binding

VARIED = ("prefix", "granularity", "tau")
MOST_PROMPTS = 8
TAUS = (1e-4, 1e-3, 1e-2, 1e-1)
GRANULARITIES: tuple[Any, ...] = ("token", "symbol", "fact", 2, 4)

CONCLUSIONS: dict[str, Callable[[dict[str, float]], bool]] = {
    "scores anti-correlated (r <= -0.8)": lambda row: row["correlation"] <= -0.8,
    "positional falls with depth": lambda row: row["positional_decline"] > 0,
    "symbolic rises with depth": lambda row: row["symbolic_rise"] > 0,
    "early layers mostly positional": lambda row: row["early_positional"] > row["early_symbolic"],
}


def vary(
    subject: Any,
    over: Sequence[str] = VARIED,
    *,
    prompts: Prompts,
    tau: float = 1e-4,
    show_progress: bool | None = None,
) -> pd.DataFrame:
    """Profile binding prompts again with one setting changed at a time: which conclusions survive?

    `over` names what is varied: prefix, granularity, tau; `prompts` are the binding prompts to start from, of
    which at most eight are taken. One row per setting, with its summary figures and what changes against the
    first row.
    """
    unknown = set(over) - set(VARIED)
    if unknown:
        raise RotoscopeError(f"what can be varied is {', '.join(VARIED)}, not {', '.join(sorted(unknown))}")
    if prompts.task != "binding":
        raise RotoscopeError(f"binding prompts can be varied, and these are prompts of the {prompts.task} task")
    subject = load(subject)
    base_settings = prompts.settings | {"count": min(len(prompts), MOST_PROMPTS)}
    scoring = ProfileSettings(tau=(tau, *(t for t in TAUS if t != tau)), null="none", examples=False)

    def run(**changed: Any) -> Profile:
        made = binding(subject, **(base_settings | changed))
        return profile(subject, made, scoring, show_progress=show_progress)

    base = run()
    rows = [_row(base, "base", "as given", tau)]
    if "tau" in over:
        rows += _over_tau(base, tau)
    for name, choices in (("prefix", PREFIXES), ("granularity", GRANULARITIES)):
        for choice in choices if name in over else ():
            if choice == base_settings[name]:
                continue
            try:
                rows.append(_row(run(**{name: choice}), name, str(choice), tau))
            except TaskError:
                continue  # this tokenizer has no such prefix, or there are too few facts for it
    table = pd.DataFrame(rows)
    drawn = {name: [bool(holds(row)) for row in rows] for name, holds in CONCLUSIONS.items()}
    for name, values in drawn.items():
        table[name] = values
    table["changes"] = [
        "; ".join(name for name, values in drawn.items() if values[k] != values[0]) for k in range(len(rows))
    ]
    return table


def _over_tau(base: Profile, tau: float) -> Iterator[dict[str, Any]]:
    for value in base.taus:
        if value != tau:
            yield _row(base, "tau", f"{value:g}", value)
    for value in base.taus:
        yield _row(base, "tau, renormalised", f"{value:g}", value, "renormalised_")


def _row(found: Profile, varied: str, setting: str, tau: float, variant: str = "") -> dict[str, Any]:
    heads = found.at(tau)
    inside = found.sinks["in_block"].any() if len(found.sinks) else False
    return {
        "varied": varied,
        "setting": setting,
        **figures(heads, f"{variant}positional_score", f"{variant}symbolic_score"),
        "effective_swaps": float(heads[f"{variant}effective_swaps"].median()),
        "sink_in_block": bool(inside),
    }
