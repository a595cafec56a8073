"""What a reader must know before trusting a profile's scores: one sentence each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pandas as pd

from rotoscope.settings.prompts import OWN

if TYPE_CHECKING:
    from rotoscope.results.profile import Profile

NO_NULL = "no null: nothing here says what a model that learned nothing would give"
ONE_PROMPT = (
    "one prompt: no interval, and nothing says whether classes are the same on the next; give more prompts"
)
FAILS, FEW_SWAPS, LITTLE_MASS, FIRST_TOKENS = 0.5, 2, 0.2, 4
LITTLE_BETTER = 1.5
"""An accuracy of less than so many times chance says little, however high it is."""


def caveats(profile: Profile) -> list[str]:
    """Every caveat of a profile, found in its tables."""
    return list(_caveats(profile))


def with_missing_caveats(noted: Iterable[object], null_name: str | None, heads: pd.DataFrame) -> list[str]:
    """What a run noted when it was finished; one that is being written has noted nothing yet."""
    found = [str(caveat) for caveat in noted]
    if null_name is None and NO_NULL not in found:
        found.insert(0, NO_NULL)
    if not any("resampled" in caveat for caveat in found):
        found += _unstable(heads)
    return found


def _caveats(profile: Profile) -> Iterator[str]:
    if profile.null_name is None:
        yield NO_NULL
    yield from failed(profile.accuracy, profile.chance)
    heads = profile.at()
    if heads["prompts"].max() == 1:
        yield ONE_PROMPT
    mass = heads["swapped_mass"].median()
    if mass < LITTLE_MASS:
        yield (
            f"the median head puts {mass:.0%} of its attention on the swapped blocks: the rest (often the "
            "first tokens) is not judged by the scores, and tau acts on what is left"
        )
    few = (heads["effective_swaps"] < FEW_SWAPS).mean()
    if few > 0.5:
        yield f"at tau = {profile.taus[0]:g} fewer than two swaps decide the score of {few:.0%} of the heads"
    yield from at_their_layer(heads, "--input-swaps 64")
    yield from _sinks(profile.sinks, str(profile.run.settings.get("task")))
    yield from _unstable(heads)
    still = _layers_without_planes(profile)
    if still:
        yield f"layers {still} do not rotate: one row per head, with frequency_id 0"
    missing = int(heads["missing_reason"].notna().sum())
    if missing:
        yield f"{missing} heads see no swap (a sliding window hides every block) and have no score"


def failed(accuracy: float | None, chance: float | None) -> Iterator[str]:
    """Whether the model can do what it is profiled on."""
    if accuracy is None or accuracy >= max(FAILS, min(1.0, LITTLE_BETTER * (chance or 0.0))):
        return
    beside = "" if chance is None else f" (chance {chance:.0%})"
    how = "it mostly fails" if accuracy < FAILS else "at which it is little better than chance"
    yield f"the model answers {accuracy:.0%} of these prompts{beside}: its heads are profiled on a task {how}"


def at_their_layer(heads: pd.DataFrame, how: str) -> Iterator[str]:
    """Symbolic heads whose symbols may be places. In layer 0 there is nothing below that could have written one."""
    symbolic = int(((heads["head_class"] == "symbolic") & (heads["layer"] > 0)).sum())
    if symbolic and "input_class" not in heads:
        who = "the symbolic head follows" if symbolic == 1 else f"the {symbolic} symbolic heads follow"
        yield (
            f"whether {who} the symbol or a place that earlier layers wrote is not known: k = 0 was not measured ({how})"
        )


def _unstable(heads: pd.DataFrame) -> Iterator[str]:
    """Heads whose class hangs on the choice of prompts; of one prompt nothing is known."""
    stable = heads.get("stable", pd.Series(dtype="boolean")).astype("boolean")
    unstable = int((~stable).sum())
    if unstable:
        yield (
            f"{unstable} of {len(heads)} heads change class when the prompts are resampled, or have it on fewer than "
            "half of them: more prompts, or a wider gamma"
        )


def _sinks(sinks: pd.DataFrame, task: str = "") -> Iterator[str]:
    """Where attention goes whatever stands there, and whether that decides the scores."""
    if not len(sinks):
        return
    inside = sinks[sinks["in_block"]]
    worst = (inside if len(inside) else sinks).sort_values("attention_mass").iloc[-1]
    where = (
        f"position {worst['position']} ({worst['token_text']!r}) draws {worst['attention_mass']:.0%} of all "
        f"attention (up to {worst['largest_layer_mass']:.0%} in a layer)"
    )
    if not len(inside):
        yield f"attention sink outside the blocks: {where}; the scores judge the rest"
        return
    prompts = inside["prompt"].nunique()
    advice = (
        "keep the first tokens outside the blocks (--prefix chat, or --prefix fact)"
        if worst["position"] < FIRST_TOKENS
        else "leave such a word out of the prompts"
    )
    advice = (
        "" if task in OWN else f"; {advice}"
    )  # our own tasks have nothing before the blocks, and fixed words
    yield f"attention sink inside a block in {prompts} prompts: {where} and decides the scores{advice}"


def _layers_without_planes(profile: Profile) -> list[int]:
    """Layers without rotation, when frequencies were asked for."""
    if "prompt_frequencies" not in profile.tables:
        return []
    fastest = profile.tables["prompt_frequencies"].groupby("layer")["frequency_id"].max()
    return sorted(int(layer) for layer in fastest.index[fastest == 0])
