"""What a training of ours adds to its loss so that heads become of a kind (`TrainSettings.favour`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rotoscope.lab.gptj import LayerState, head_logits
from rotoscope.lab.settings import TrainSettings
from rotoscope.scores.exclusion_principle import exclusion_of
from rotoscope.shapes import Float, Int, Tensor


class Penalties:
    """For each of the models that are trained as one, its strength times the mean penalty of its favoured layers' heads.

    The query is the last token, where the task is asked. Layers are shown to `visit` in the forward pass of the step itself.
    """

    def __init__(self, settings: Sequence[TrainSettings], device: torch.device) -> None:
        first = next(model for model in settings if model.favour != "none")
        self.layers, self.begin, self.end = set(first.favoured), *first.favoured_steps
        strengths = [
            [model.strength * (model.favour == kind) for model in settings]
            for kind in ("symbolic", "positional")
        ]
        self.symbolic, self.positional = torch.tensor(strengths, device=device)
        self.states: list[LayerState] = []

    @classmethod
    def of(cls, settings: Sequence[TrainSettings], device: torch.device) -> Penalties | None:
        """None where no model favours a kind: nothing is then computed."""
        return cls(settings, device) if any(model.favour != "none" for model in settings) else None

    def visit(self, state: LayerState) -> None:
        """Keep a layer of the step that is computed, if it is one of those that are favoured."""
        if state.layer in self.layers:
            self.states.append(state)

    def after(self, now: Int[Tensor, "1"]) -> Float[Tensor, "models"]:
        """What to add to every model's loss at a step; what was kept of it is let go."""
        states, self.states = self.states, []
        logits = head_logits(states, states[0].query.shape[-2] - 1)[
            ..., :-1, :-1
        ]  # the query's own key is no visible key
        logit_exclusion = exclusion_of(logits)
        means = [logit_exclusion.penalty(kind).mean((0, -2, -1)) for kind in ("symbolic", "positional")]
        active = (now >= self.begin) & (now < self.end)
        return active * (self.symbolic * means[0] + self.positional * means[1])
