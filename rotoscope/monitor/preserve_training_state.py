"""The model inside what trains it, and a look at it that leaves the training as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from rotoscope.errors import ModelError
from rotoscope.models.offloading import split_over_processes
from rotoscope.models.sites import replaced, uncompiled
from rotoscope.models.subject import unwrapped


def model_inside(model: Any) -> Any:
    """The transformers model that is trained, out of `torch.compile`, data parallelism and PEFT.

    Models whose weights are spread over processes have no whole layer to read anywhere, and are refused.
    """
    while True:
        model = unwrapped(model)
        kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(model).__mro__}
        if ("peft", "PeftModel") not in kinds:
            break
        _refuse_prompt_learning(model)
        model = model.get_base_model()
    names = {name for _, name in kinds}
    spread = names & {"FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine"}
    if spread or split_over_processes(model):
        raise ModelError(
            f"the weights of this {type(model).__name__} are spread over processes, so that no process can read a layer; "
            "monitor a training with data parallelism, or score its checkpoints afterwards (rotoscope dynamics)"
        )
    if not hasattr(getattr(model, "config", None), "model_type"):
        raise ModelError(
            f"a {type(model).__name__} has no transformers configuration; give the monitor the transformers model inside it"
        )
    return model


def _refuse_prompt_learning(model: Any) -> None:
    if model.active_peft_config.is_prompt_learning:
        raise ModelError(
            f"{model.active_peft_config.peft_type.value} puts virtual tokens before every prompt, which the scores would leave "
            "out; monitor adapters inside the layers, such as LoRA"
        )


@contextmanager
def untouched(model: Any) -> Iterator[None]:
    """Inside, the model runs as its weights are: not compiled, not in mixed precision. Afterwards everything is as before:
    random numbers, and what was put in the place of methods. (Mode, gradients and attention are the reader's to keep.)"""
    devices = sorted({weight.device for weight in model.parameters() if weight.device.type == "cuda"}, key=str)
    kinds = {"cpu", *(device.type for device in devices)}
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([device.index or 0 for device in devices]))
        for kind in kinds:
            stack.enter_context(torch.autocast(kind, enabled=False))
        if "_original_forward" in vars(model):  # accelerate has put autocast around it
            stack.enter_context(replaced(model, "forward", model._original_forward))
        stack.enter_context(uncompiled(model))
        yield
