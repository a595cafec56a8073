"""Everything that can be wrong with what a user gave us.

Each message says what was found, what was expected and what to do next. The command line prints it
as one sentence and exits with code 2; library users catch `RotoscopeError`.
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "BlockError",
    "EndpointError",
    "ModelError",
    "NoRotaryError",
    "NumberError",
    "RotoscopeError",
    "RunError",
    "TaskError",
    "TooLargeError",
    "UnprovenError",
]


class RotoscopeError(ValueError):
    """Base of every error this package raises on purpose."""


class BlockError(RotoscopeError):
    """Blocks that cannot be swapped: too few, overlapping, out of range, or holding the query."""


class TaskError(RotoscopeError):
    """A prompt that cannot be made or does not fit the model."""


class ModelError(RotoscopeError):
    """A model that is missing, damaged or of a form we cannot load."""


class NoRotaryError(ModelError):
    """A model without rotary positions: its heads are symbolic under key swaps by construction."""


class UnprovenError(ModelError):
    """An architecture whose own attention could not be rebuilt from what was read out of it."""


class NumberError(RotoscopeError):
    """NaN or infinity where a number was expected."""


class RunError(RotoscopeError):
    """A run folder that cannot be opened, resumed or written."""


class TooLargeError(RotoscopeError):
    """Work that cannot fit the memory or the disk that is free."""


class EndpointError(RotoscopeError):
    """A server that cannot be reached, refuses us or does not know what we ask for."""


def pip_install(extra: str) -> str:
    """The command that installs one of our extras: from the index, or from the checkout that is running."""
    checkout = Path(__file__).parents[1]
    if not (checkout / "pyproject.toml").is_file():
        return f"pip install 'rotoscope[{extra}]'"
    return f"pip install '{'.' if checkout == Path.cwd() else checkout}[{extra}]'"
