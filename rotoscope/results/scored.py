"""What runs that score heads have in common: the temperatures and the tolerance they were made with."""

from __future__ import annotations

from rotoscope.results.saved import SavedRun
from rotoscope.results.table import Table


class ScoredRun(SavedRun):
    """A run whose tables hold scores of heads at one or several temperatures."""

    shown_prompt = Table("The first prompt, one row per token.", made_with="examples=True")
    attention = Table(
        "Every head on the first prompt, with lists: attention before and after its heaviest swap, the swaps that are kept, "
        "attention after each of them where content moved, and keys in the plane whose logits vary most. "
        "`results.shown.after_swap` puts the attention after any of them together.",
        made_with="examples=True",
    )

    @property
    def taus(self) -> list[float]:
        """The temperatures that were measured, in the order given."""
        return [float(tau) for tau in self.run.settings["tau"]]

    def tau_or_first(self, tau: float | None) -> float:
        """The temperature asked for; by default the first that was measured."""
        return self.taus[0] if tau is None else tau

    @property
    def gamma(self) -> float:
        """The tolerance of the purity classes."""
        return float(self.run.settings["gamma"])
