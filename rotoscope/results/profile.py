"""A profile: the scores of every head of one model on one set of prompts."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from rotoscope.errors import RotoscopeError, RunError
from rotoscope.results.aggregate import INDEX, MEASURES, head_table
from rotoscope.results.folder import RunFolder, read_run, read_table
from rotoscope.results.summary import Summary, summarise

__all__ = ["Profile"]

OPTIONAL_TABLES = ("answers", "queries")


class Profile:
    """Scores of all heads, per prompt and per head.

    Layers and heads are counted from 0, as in transformers. `run` is the content of `run.json`.
    """

    kind = "profile"

    def __init__(self, run: dict[str, Any], tables: dict[str, pd.DataFrame]) -> None:
        self.run = run
        self.tables = tables

    @property
    def prompts(self) -> pd.DataFrame:
        """One row per (prompt, layer, head, tau)."""
        return self.tables["prompts"]

    @cached_property
    def heads(self) -> pd.DataFrame:
        """One row per (layer, head, tau): means over prompts, spread, class."""
        return head_table(self.prompts, self.gamma)

    @property
    def queries(self) -> pd.DataFrame:
        """One row per (prompt, query_position, layer, head, tau), when there was more than one query."""
        if "queries" not in self.tables:
            raise RotoscopeError("this profile has one query per prompt; its rows are in .prompts")
        return self.tables["queries"]

    @property
    def answers(self) -> pd.DataFrame:
        """What the model itself answered where the task expects something; empty if it expects nothing."""
        return self.tables.get("answers", pd.DataFrame())

    @property
    def accuracy(self) -> float | None:
        """The model's own accuracy on the prompts it was profiled on."""
        return float(self.answers["correct"].mean()) if len(self.answers) else None

    @property
    def taus(self) -> list[float]:
        return [float(tau) for tau in self.run["settings"]["tau"]]

    @property
    def gamma(self) -> float:
        return float(self.run["settings"]["gamma"])

    @property
    def name(self) -> str:
        return str(self.run["subject"]["name"])

    def at(self, tau: float | None = None) -> pd.DataFrame:
        """The head table at one tau (default: the first)."""
        wanted = self.taus[0] if tau is None else tau
        if wanted not in self.taus:
            raise RotoscopeError(f"this profile has tau = {self.taus}, not {wanted}")
        return self.heads[self.heads["tau"] == wanted].reset_index(drop=True)

    def summary(self, tau: float | None = None) -> Summary:
        """Correlation of the two scores, medians by depth, class counts."""
        return summarise(self.at(tau))

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the profile as a run folder; `rs.open` reads it back."""
        folder = RunFolder(path, self.kind, self.run["settings"], overwrite=overwrite)
        folder.begin()
        details = {k: v for k, v in self.run.items() if k in ("subject", "timings", "warnings", "proof")}
        folder.finish({**self.tables, "heads": self.heads}, **details)
        return folder.path

    @classmethod
    def open(cls, path: str | Path) -> Profile:
        folder = Path(path)
        run = read_run(folder)
        if run.get("kind") != cls.kind:
            raise RunError(f"{folder} holds a run of kind '{run.get('kind')}', not a profile")
        if not run.get("complete"):
            raise RunError(f"{folder} is not finished; run the same command again and it goes on where it was")
        tables = {"prompts": read_table(folder / "prompts.parquet")}
        for name in OPTIONAL_TABLES:
            if name in run.get("tables", []):
                tables[name] = read_table(folder / f"{name}.parquet")
        return cls(run, tables)

    def to_xarray(self) -> Any:
        """The per-prompt scores as a labelled array: dimensions prompt, layer, head, tau."""
        try:
            import xarray
        except ImportError as missing:
            raise RotoscopeError("to_xarray needs: pip install 'rotoscope[xarray]'") from missing
        present = [name for name in MEASURES if name in self.prompts]
        cube = self.prompts.set_index(["prompt", *INDEX])[present]
        return xarray.Dataset.from_dataframe(cube).assign_attrs(model=self.name)

    def __repr__(self) -> str:
        heads = self.at()
        counts = ", ".join(f"{n} {name}" for name, n in heads["head_class"].value_counts().items())
        prompts = self.prompts["prompt"].nunique()
        return f"Profile({self.name!r}: {len(heads)} heads, {prompts} prompts, tau={self.taus[0]:g}: {counts})"
