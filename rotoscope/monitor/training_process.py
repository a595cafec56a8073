"""A training around the monitor: the model inside what trains it, left as it was, and the processes that train it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import distributed

from rotoscope.errors import ModelError
from rotoscope.models.offloading import split_over_processes
from rotoscope.models.sites import replaced, uncompiled
from rotoscope.models.subject import unwrapped


def is_first() -> bool:
    """Whether this process is the one that measures; the only one, where there is one."""
    return not _several_processes() or distributed.get_rank() == 0


def from_first(*numbers: int, device: torch.device) -> list[int]:
    """The first process's numbers, in every process; all of them must ask."""
    if not _several_processes():
        return list(numbers)
    device = device if distributed.get_backend() == "nccl" else torch.device("cpu")
    broadcast = torch.tensor(numbers, dtype=torch.int64, device=device)
    distributed.broadcast(broadcast, src=0)
    return [int(number) for number in broadcast.tolist()]


def _several_processes() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def model_device(model: Any) -> torch.device:
    device: torch.device = next(model.parameters()).device
    return device


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
def preserved_training_state(model: Any) -> Iterator[None]:
    """Run the model as its weights are, not compiled and not in mixed precision, and restore everything afterwards.

    Random numbers and replaced methods are restored here; mode, gradients and attention are the reader's to restore.
    """
    devices = sorted({weight.device for weight in model.parameters() if weight.device.type == "cuda"}, key=str)
    kinds = {"cpu", *(device.type for device in devices)}
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([device.index or 0 for device in devices]))
        for kind in kinds:
            stack.enter_context(torch.autocast(kind, enabled=False))
        if "_original_forward" in vars(model):  # accelerate has put autocast around it
            stack.enter_context(replaced(model, "forward", model._original_forward))
        stack.enter_context(uncompiled(list(model.modules())))
        yield
