"""Commands and flags that are gone, each with what to use instead."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rotoscope.errors import RotoscopeError

TRAINING = (
    "alphabet", "betas", "digits", "dropout", "favour_from", "favour_until", "learning_rate", "letters", "positions", "rotary", "target",
    "test_sequences", "train_sequences", "validation_sequences", "warmup", "watch_closely", "watch_later", "weight_decay", "window",
)  # fmt: skip
"""Settings of a training that are set in Python."""
CANONICAL = (
    "batch", "embedding", "entities", "evaluations", "first", "floor", "gain", "lr", "repeats", "symbols", "tested", "warmup",
)  # fmt: skip
"""Settings of the canonical tasks that are set in Python."""
PLANS = {
    "cache": ("passage", "random_draws", "rankings"),
    "rotation": ("passage", "path_points"),
}
"""Settings of plans that are set in Python."""
PLANE_FLAGS = {"plane-rankings": "rankings", "plane-budgets": "budgets", "plane-draws": "random_draws"}
"""Flags of rotation plans, with the settings in Python that took their place."""
PROMPTS = {"asked": "groups", "distinct": "binding", "ending": "binding", "equal_length": "binding"}
"""Settings of prompts that are set in Python, each with its task."""
COMMANDS: dict[str, str] = {
    "atlas": "use 'rotoscope sweep FILE --table TABLE.parquet' for one table of the heads of all runs",
    "bundle": "use rotoscope report RUNS --site DIR",
    "calibrate": "run python -m benchmarks.false_verdicts in a clone of the repository",
    "data": "in Python, rs.tasks.number(480000).save(folder) writes the sequences as a dataset",
    "plan context": "read the model with other rotary settings (profile --rope rope_type=yarn,factor=4.0) and compare profiles",
}
"""What answers a removed command, by its name ("bundle", "plan context")."""
FLAGS: dict[str, str] = {
    "ask --answer-tokens": "in Python, rs.experiments.one_hop_local takes answer_tokens",
    "ask --patience": "in Python, rs.experiments.one_hop_endpoint takes patience",
    "ask --timeout": "in Python, rs.experiments.one_hop_endpoint takes timeout",
    **{
        f"ask --price-{way}": f"in Python, rs.experiments.one_hop_endpoint takes price_{way}"
        for way in ("in", "out")
    },
    **{
        f"canonical --{name}": f"in Python, rs.experiments.canonical_experiments takes {name}"
        for name in CANONICAL
    },
    **{
        f"depths --{name.replace('_', '-')}": f"in Python, rs.depths takes {name}"
        for name in ("batch_tokens", "controls", "readers")
    },
    **dict.fromkeys(("doctor --out", "doctor --overwrite"), "redirect the output: rotoscope doctor > FILE"),
    "doctor --seed": "the self-check always runs on the same tokens",
    "depths --answer": "no answer is asked for",
    "dynamics --sequence": "in Python, rs.experiments.trace takes a sequence, and rs.figures.information_flow draws it",
    "gate --groups": "in Python, rs.gate takes groups",
    "lengths --heads": "in Python, rs.lengths takes heads",
    "lengths --no-heads": "in Python, rs.lengths takes heads",
    **{
        f"{command} --allow-missing": "in Python, rs.load, rs.dynamics and rs.lengths take allow_missing"
        for command in ("profile", "depths", "gate", "plan", "dynamics", "lengths", "ask")
    },
    **{
        f"plan {decision} --{name.replace('_', '-')}": f"in Python, rs.plan.{decision} takes {name}"
        for decision, names in PLANS.items()
        for name in names
    },
    **{
        f"plan rotation --{flag}": f"in Python, rs.plan.rotation takes {name}"
        for flag, name in PLANE_FLAGS.items()
    },
    **{
        f"{command} --no-figures": "figures are drawn only where --figures is given"
        for command in (
            "ask",
            "canonical",
            "depths",
            "dynamics",
            "gate",
            "lengths",
            "plan",
            "profile",
            "theory",
            "train",
        )
    },
    **dict.fromkeys(
        ("report --run", "report --other"), "write the folders one after the other: rotoscope report RUN OTHER"
    ),
    **{
        f"{command} --{name.replace('_', '-')}": f"in Python, rs.tasks.{task} takes {name}"
        for command in ("profile", "depths", "gate")
        for name, task in PROMPTS.items()
    },
    **dict.fromkeys(("serve --open", "serve --no-open"), "open the address that is printed"),
    **{
        f"{command} --offload-folder": "set TMPDIR, or in Python use rs.load(..., offload_folder=...)"
        for command in ("profile", "depths", "gate", "plan", "ask")
    },
    "profile --devices": "use --device-map to spread a large model over several devices, 'rotoscope sweep' to run many profiles",
    "profile --least-mass": "in Python, rs.profile takes least_mass",
    "profile --no-prove": "in Python, rs.profile takes prove=False",
    "profile --null-per-layer": "the random null is rescaled by one factor",
    "profile --prove": "the reading of a model is always proven",
    "profile --tensor-parallel": "use --device-map to spread a large model over several devices",
    **{
        f"{command} --force": "only what cannot fit memory or disk is refused: ask for less"
        for command in (
            "ask",
            "canonical",
            "depths",
            "dynamics",
            "gate",
            "lengths",
            "plan",
            "profile",
            "train",
        )
    },
    "plan cache --input-swaps": "use profile --input-swaps for scores with the prompt itself permuted",
    "profile --vary": "sweep over the settings instead: rotoscope sweep examples/settings.toml",
    "reproduce --seed": "the claims are judged on fixed seeds",
    "theory --device": "the checks run on the CPU",
    "theory --letter": "in Python, rs.figures.hop_path draws any sequence",
    "theory --number": "in Python, rs.figures.hop_path draws any sequence",
    "theory --seed": "in Python, rs.figures.hop_path draws any sequence",
    **{f"train --{name.replace('_', '-')}": f"in Python, rs.lab.train takes {name}" for name in TRAINING},
    **{
        f"train --{name}": f"in Python, rs.experiments.Watch takes {name}"
        for name in ("inputs", "queries", "tau")
    },
    "report --atlas": "use 'rotoscope sweep FILE --table TABLE.parquet' and compare the heads of several models with pandas",
    "sweep --storage": "use --out with a folder that all nodes see",
}
"""What answers a removed flag, by its command and itself ("profile --devices")."""


def check_removed(tokens: Sequence[str]) -> None:
    """Raise RotoscopeError where a command line names a command or a flag that is gone."""
    words = _without_config(tokens)
    if not words or words[0].startswith("-"):
        return
    command = " ".join(words[:2])
    _refuse(removed_command(words[0]) or removed_command(command))
    for word, following in itertools.pairwise([*words[1:], ""]):
        flag, _, value = word.partition("=")
        if flag.startswith("--"):
            _refuse(removed_setting(command, flag, value or following))


def removed_command(name: str) -> str:
    """What to say of a command that is gone ("bundle", "plan context"); empty where it is not."""
    return f"'rotoscope {name}' was removed; {COMMANDS[name]}" if name in COMMANDS else ""


def removed_setting(command: str, name: str, value: object = None) -> str:
    """What to say of a setting that is gone, in whatever way it is written, or of such a value; empty where it is not.

    `command` is a command, or "plan cache".
    """
    first = command.partition(" ")[0]
    flag = f"--{name.removeprefix('--').replace('_', '-').lower()}"
    decision = f"{first} {value}" if flag == "--decision" else ""
    if message := removed_command(first) or removed_command(decision):
        return message
    for owner in (command, first, *(f"{first} {plan}" for plan in PLANS)):
        if f"{owner} {flag}" in FLAGS:
            return f"{flag} of 'rotoscope {owner}' was removed; {FLAGS[f'{owner} {flag}']}"
    return ""


def removed_variable(variable: str, value: str) -> str:
    """The same of an environment variable, ROTOSCOPE_COMMAND_SETTING."""
    _, _, named = variable.lower().partition("_")
    command, _, name = named.partition("_")
    return removed_setting(command, name, value)


def _without_config(tokens: Sequence[str]) -> list[str]:
    """A command line from its command on."""
    words = list(tokens)
    while words and words[0].startswith("--config"):
        del words[: 1 if "=" in words[0] else 2]
    return words


def _refuse(message: str) -> None:
    if message:
        raise RotoscopeError(message)
