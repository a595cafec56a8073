"""Commands and flags that are gone, each with what to use instead."""

from __future__ import annotations

from collections.abc import Sequence

from rotoscope.errors import RotoscopeError

TRAINING = (
    "betas", "dropout", "favour_from", "favour_until", "positions", "rotary", "watch_closely", "watch_later", "weight_decay",
)  # fmt: skip
"""Settings of a training that are set in Python."""
COMMANDS: dict[str, str] = {
    "atlas": "use 'rotoscope sweep FILE --table TABLE.parquet' for one table of the heads of all runs",
    "bundle": "use rotoscope report RUNS --site DIR",
    "calibrate": "run python -m benchmarks.false_verdicts in a clone of the repository",
    "data": "in Python, rs.tasks.number(480000).save(folder) writes the sequences as a dataset",
    "plan context": "read the model with other rotary settings (profile --rope rope_type=yarn,factor=4.0) and compare profiles",
}
"""What answers a removed command, by its name ("bundle", "plan context")."""
FLAGS: dict[str, str] = {
    "ask --answer-tokens": "in Python, rs.analysis.one_hop_local takes answer_tokens",
    "ask --patience": "in Python, rs.analysis.one_hop_endpoint takes patience",
    "ask --timeout": "in Python, rs.analysis.one_hop_endpoint takes timeout",
    **{
        f"canonical --{name}": f"in Python, rs.analysis.canonical_experiments takes {name}"
        for name in ("embedding", "first", "floor", "gain", "lr", "repeats", "warmup")
    },
    "depths --readers": "in Python, rs.depths takes readers",
    **dict.fromkeys(("doctor --out", "doctor --overwrite"), "redirect the output: rotoscope doctor > FILE"),
    "doctor --seed": "the self-check always runs on the same tokens",
    **{
        f"{command} --equal-length": "in Python, rs.tasks.binding and rs.tasks.text take equal_length"
        for command in ("profile", "depths", "gate")
    },
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
    "report --atlas": "use 'rotoscope sweep FILE --table TABLE.parquet' and compare the heads of several models with pandas",
    "sweep --storage": "use --out with a folder that all nodes see",
}
"""What answers a removed flag, by its command and itself ("profile --devices")."""


def check_removed(tokens: Sequence[str]) -> None:
    """Raise RotoscopeError where a command line names a command or a flag that is gone."""
    commands = [" ".join(tokens[:count]) for count in (1, 2)]
    flags = [token.partition("=")[0].replace("_", "-") for token in tokens if token.startswith("--")]
    for command in commands:
        if command in COMMANDS:
            raise RotoscopeError(f"'rotoscope {command}' was removed; {COMMANDS[command]}")
        for flag in flags:
            if f"{command} {flag}" in FLAGS:
                raise RotoscopeError(
                    f"{flag} of 'rotoscope {command}' was removed; {FLAGS[f'{command} {flag}']}"
                )
