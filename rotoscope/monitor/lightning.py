"""The monitor as a callback of Lightning, under either of its names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from transformers import PreTrainedModel

from rotoscope.errors import ModelError, RotoscopeError, pip_install
from rotoscope.monitor.head_monitor import HeadMonitor
from rotoscope.monitor.training_process import model_inside

NAMES = ("lightning.pytorch", "pytorch_lightning")


def _lightning() -> Any:
    """Lightning under the name it is in use, else under the one it is installed."""
    for name in sorted(NAMES, key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise RotoscopeError(f"the callback for Lightning needs: {pip_install('lightning')}")


class LightningHeadMonitor(_lightning().Callback):  # type: ignore[misc]
    """Scores all heads of the transformers model in a LightningModule; `settings` are those of `HeadMonitor`.

    `model` says where the model is in the module; by default it is looked for, and there must be just one.
    """

    def __init__(
        self, prompts: Any, every: Any = 500, *, model: Callable[[Any], Any] | None = None, **settings: Any
    ) -> None:
        super().__init__()
        self.monitor = HeadMonitor(prompts, every, **settings)
        self.find = model or _the_model

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Errors that would come later come here; the first point is made."""
        steps = trainer.estimated_stepping_batches
        of = int(steps) if steps != float("inf") else None
        self.monitor.begin(self.find(module), trainer.global_step, of=of)
        self.monitor.step(self.find(module), trainer.global_step)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A point where one is due; its numbers go to whatever logger the trainer has."""
        self._look(trainer, module)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """The last point, and the end of the run."""
        self._look(trainer, module, now=self.monitor.schedule.share is None)
        self.monitor.finish()

    def _look(self, trainer: Any, module: Any, *, now: bool = False) -> None:
        numbers = self.monitor.step(self.find(module), trainer.global_step, now=now)
        for logger in trainer.loggers if numbers else ():
            logger.log_metrics(numbers, trainer.global_step)


def _the_model(module: Any) -> Any:
    """The transformers model in a module, as it stands there: compiled or wrapped."""
    models = []
    for child in module.children():
        try:
            inside = model_inside(child)
        except (ModelError, AttributeError):
            continue
        if isinstance(inside, PreTrainedModel):
            models.append(child)
    if len(models) != 1:
        raise ModelError(
            f"a {type(module).__name__} holds {len(models)} transformers models; say which to monitor: "
            "LightningHeadMonitor(prompts, model=lambda module: module.…)"
        )
    return models[0]
