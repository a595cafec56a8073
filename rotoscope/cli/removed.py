"""Commands and flags that are gone, each with what to use instead."""

from __future__ import annotations

from collections.abc import Sequence

from rotoscope.errors import RotoscopeError

COMMANDS: dict[str, str] = {
    "atlas": "use 'rotoscope sweep FILE --table TABLE.parquet' for one table of the heads of all runs",
}
"""What answers a removed command, by its name ("bundle", "plan context")."""
FLAGS: dict[str, str] = {
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
