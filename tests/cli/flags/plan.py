"""`rotoscope plan`: what all decisions share, and what plan cache has."""

from __future__ import annotations

from typing import Any

from tests.cli.flags import plan_rotation
from tests.cli.flags.effect import (
    Effect,
    Other,
    Outcome,
    Overwrites,
    Refused,
    Table,
    Undrawn,
    Written,
    every,
    half_on_disk,
    on_device,
)  # fmt: skip

SIZES = "--prompts 2 --length 8 --window 4 --sinks 1"
CACHE = f"plan cache {{model}} --sources repeats {SIZES} --rankings far_task --frontier 0.5 --no-figures"
DRAWN = f"plan cache {{model}} --sources repeats {SIZES} --rankings random far_task --frontier 0.5 --random-draws 2 --no-figures"
TEXT = "plan cache {model} --sources text --task text --prompts 1 --passage 12 --window 4 --sinks 1 --rankings far_task --frontier 0.5 --no-figures"


def losses(outcome: Outcome) -> list[float]:
    return outcome.result.points["loss"].tolist()


def asked(outcome: Outcome, source: str) -> Any:
    return outcome.result.run.settings["task_settings"][source]


FLAGS: Table = {
    "decision": Refused(CACHE, "--planes 2", "--planes means something for plan rotation only, not for plan cache"),
    "model": Other(CACHE, CACHE.replace("{model}", "{other}"), lambda o: o.result.run.subject.fingerprint),
    "keep": (
        Effect(CACHE, "--keep 50%", lambda o: int(o.result.heads["streams"].sum()), 2),
        Refused(CACHE, "--keep 125%", "keep must be at most 1, found 1.25"),
        Refused(CACHE, "--keep some", "'some' is no share: write 0.25 or 25%"),
        Refused(CACHE, "--keep 25", "keep must be at most 1, found 25.0: did you mean 25%?"),
    ),
    "window": (
        Effect(CACHE, "--window 6", lambda o: o.result.run.settings["window"], 6),
        Refused(CACHE, "--window 8", "7 of 7 tokens that repeats ask for, 7 tokens back, stand among the last 8"),
    ),
    "sinks": Effect(CACHE, "--sinks 3", losses),
    "task": (
        Effect(
            CACHE.replace("--sources repeats", "--sources repeats text --passage 12"), "--task text",
            lambda o: o.result.run.settings["task"], "text",
        ),
        Refused(CACHE, "--task text", "heads are ranked on text (--task), which is not among what is judged"),
    ),
    "rankings": (
        Effect(CACHE, "--rankings gradient", lambda o: every(o, "scores", "ranking"), ["gradient"]),
        Refused(CACHE, "--rankings random", "random rankings are what a plan is compared with: name at least one other"),
    ),
    "frontier": (
        Effect(CACHE, "--frontier 0.75", lambda o: every(o, "points", "kept_share"), [0.0, 0.25, 0.75, 1.0]),
        Effect(CACHE, "--frontier 50% 75%", lambda o: every(o, "points", "kept_share"), [0.0, 0.25, 0.5, 0.75, 1.0]),
        Refused(CACHE, "--frontier 10", "frontier must be at most 1, found 10.0: did you mean 10%?"),
    ),
    "random_draws": Effect(DRAWN, "--random-draws 3", lambda o: every(o, "scores", "draw"), [-1, 0, 1, 2]),
    "sources": Effect(CACHE, "--sources repeats text --passage 12", lambda o: every(o, "points", "source"), ["repeats", "text"]),
    "prompts": Effect(CACHE, "--prompts 3", lambda o: every(o, "points", "prompt"), [0, 1, 2]),
    "length": Effect(CACHE, "--length 9", lambda o: asked(o, "repeats")["length"], 9),
    "pairs": "tests/analysis/test_plan_cache.py::test_lines_to_look_up",
    "passage": Effect(TEXT, "--passage 14", lambda o: asked(o, "text")["length"], 14),
    "text": Effect(TEXT, "--text {long}", lambda o: asked(o, "text")["text"], "own"),
    "seed": Effect(CACHE, "--seed 1", losses),
    "dtype": Effect(CACHE, "--dtype bfloat16", lambda o: o.result.run.subject.dtype, "bfloat16"),
    "allow_missing": "tests/cli/test_loading.py::test_allow_missing",
    "device_map": half_on_disk(CACHE),
    "rope": "tests/cli/test_rope.py::test_rope",
    "out": Written(CACHE),
    "overwrite": Overwrites(CACHE, "--seed 1"),
    "figures": Undrawn(CACHE, "tests/figures/test_plans.py::test_the_figures_of_a_cache_plan"),
    "device": on_device(CACHE),
    **plan_rotation.FLAGS,
}  # fmt: skip
