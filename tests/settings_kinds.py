"""Every settings type of the package."""

from __future__ import annotations

import rotoscope.cli  # whose commands import them all
from rotoscope.settings import Settings


def settings_kinds() -> list[type[Settings]]:
    """All subclasses of Settings that the files called settings define, by name."""
    assert rotoscope.cli.commands()
    found, left = set[type[Settings]](), [Settings]
    while left:
        children = [kind for kind in left.pop().__subclasses__() if kind.__module__.startswith("rotoscope.")]
        found.update(children)
        left += children
    declared = {kind for kind in found if kind.__module__.endswith("settings")}
    return sorted(declared, key=lambda kind: kind.__name__)
