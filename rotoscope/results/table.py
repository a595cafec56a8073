"""A run's tables as attributes that say what their rows are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, overload

import pandas as pd

from rotoscope.errors import RotoscopeError, RunError

if TYPE_CHECKING:
    from rotoscope.results.saved import SavedRun


class Table:
    """Gives the table of the attribute's own name; `name` where the file is called otherwise.

    Where a run need not have it, `optional` gives an empty table instead of an error, and `made_with` says
    what the run should have been made with.
    """

    def __init__(
        self, doc: str, *, name: str | None = None, optional: bool = False, made_with: str = ""
    ) -> None:
        self.__doc__ = doc
        self.name, self.optional, self.made_with = name, optional, made_with

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.attribute, self.name = attribute, self.name or attribute

    @overload
    def __get__(self, run: None, owner: type) -> Self: ...
    @overload
    def __get__(self, run: SavedRun, owner: type) -> pd.DataFrame: ...
    def __get__(self, run: SavedRun | None, owner: type) -> Self | pd.DataFrame:
        if run is None:
            return self
        assert self.name is not None
        if self.name in run.tables:
            return run.tables[self.name]
        if self.optional:
            return pd.DataFrame()
        if self.made_with:
            raise RotoscopeError(f"this {run.kind} was made without {self.made_with}")
        have = ", ".join(sorted(run.tables)) or "none"
        raise RunError(f"this {run.kind} run has no table '{self.name}' (it has: {have}); make the run again")

    def __set__(self, run: SavedRun, value: object) -> None:
        raise AttributeError(f"{self.attribute} is read from the run; put a table into .tables['{self.name}']")
