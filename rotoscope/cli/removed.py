"""Commands and flags that are gone, each with what to use instead."""

from __future__ import annotations

from collections.abc import Sequence

from rotoscope.errors import RotoscopeError

COMMANDS: dict[str, str] = {
    "plan context": "read the model with other rotary settings (profile --rope rope_type=yarn,factor=4.0) and compare profiles",
}
"""What answers a removed command, by its name ("bundle", "plan context")."""
FLAGS: dict[str, str] = {
    "profile --devices": "use --device-map to spread a large model over several devices, 'rotoscope sweep' to run many profiles",
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
