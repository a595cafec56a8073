"""Models whose weights a device_map has spread: over devices, beside a GPU on the CPU, or on disk.

Where weights do not fit, accelerate leaves empty parameters (on torch's "meta" device) in their places, and puts hooks around
the modules that bring the weights in for the time of a call. A model is read through these hooks, layer by layer. What has
to look at weights outside a call, for a fingerprint or a proof, fetches them here; a module that was left by an exception,
as every module is whose queries and keys are read, gives its weights back here.
"""

from __future__ import annotations

import copy
import gc
import logging
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rotoscope.errors import ModelError
from rotoscope.shapes import Tensor

HOOK, FORWARD = "_hf_hook", "_old_forward"
"""Where accelerate keeps its hook around a module, and the module's own `forward`."""


def hooks(module: nn.Module) -> list[Any]:
    """accelerate's hooks around a module."""
    hook = vars(module).get(HOOK)
    return [] if hook is None else list(getattr(hook, "hooks", (hook,)))


def offloads(model: nn.Module) -> bool:
    """Whether some weights are in their places for the time of a call only."""
    return any(getattr(hook, "offload", False) for module in model.modules() for hook in hooks(module))


def placed_by(model: nn.Module) -> dict[str, Any] | None:
    """The device_map a model is spread by; None where all of it is in one place."""
    spread: dict[str, Any] = getattr(model, "hf_device_map", None) or {}
    return spread if len(set(spread.values())) > 1 else None


def places(model: nn.Module) -> list[str]:
    """Where the weights are, in the order of the model: devices, "disk"."""
    spread = placed_by(model)
    if spread is None:
        return [computes_on(model).type]
    named = (f"cuda:{place}" if isinstance(place, int) else str(place) for place in spread.values())
    return list(dict.fromkeys(named))


def computes_on(model: nn.Module) -> torch.device:
    """The device on which a model begins: that of its first weight, or the one it is brought to for a call."""
    name, weight = next(model.named_parameters())
    if not weight.is_meta:
        return weight.device
    for _, module in _around(model, name):
        for hook in hooks(module):
            if getattr(hook, "execution_device", None) is not None:
                return torch.device(hook.execution_device)
    return weight.device


def split_over_processes(model: nn.Module) -> bool:
    """Whether this process holds only a part of the weights: tensor parallelism, FSDP or ZeRO-3."""
    return (getattr(model, "_tp_size", None) or 1) > 1 or any(
        type(weight).__name__ == "DTensor" or hasattr(weight, "ds_id") for weight in model.parameters()
    )


def check_whole(model: nn.Module) -> None:
    """Refuse a model of which this process holds only a part: it would score a part of the heads under wrong numbers."""
    if split_over_processes(model):
        raise ModelError(
            f"the weights of this {type(model).__name__} are split over several processes, and heads are read from whole "
            "layers; load the model in one process, with a device_map if it does not fit one device"
        )


def weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight by its name, whether it is in its place or not: fetched one at a time, and not kept."""
    for name, weight in each_once(model):
        yield name, _fetched(model, name).to(weight.dtype) if weight.is_meta else weight.detach()


def buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every buffer by all of its names, fetched where it is not in its place: moving a model parts two that were one."""
    for name, buffer in model.named_buffers(remove_duplicate=False):
        yield name, _fetched(model, name).to(buffer.dtype) if buffer.is_meta else buffer.detach()


def each_once(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters by name, empty ones as they are; two that are tied are one, also where both are empty."""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return (
        (name, weight) for name, weight in model.named_parameters() if not (weight.is_meta and name in tied)
    )


def not_loaded(model: nn.Module) -> bool:
    """Whether a model has weights that are nowhere: made on the meta device, and never filled."""
    return any(
        weight.is_meta and not any(getattr(hook, "offload", False) for _, at in _around(model, name) for hook in hooks(at))
        for name, weight in model.named_parameters()
    )  # fmt: skip


def put_back(model: nn.Module) -> None:
    """Take weights out of their places again where an exception has left them there."""
    for module in model.modules():
        outer = vars(module).get(HOOK)
        if outer is not None and any(
            getattr(hook, "offload", False)
            and any(not weight.is_meta for weight in module.parameters(recurse=hook.place_submodules))
            for hook in hooks(module)
        ):
            outer.post_forward(module, ())


def plain_copy(module: nn.Module) -> Any:
    """A copy of a module that holds its weights itself, where they are computed with, and has no hooks."""
    kept: dict[int, Any] = {id(vars(part)[HOOK]): object() for part in module.modules() if HOOK in vars(part)}
    duplicate = copy.deepcopy(module, kept)  # without the hooks, which hold the weights of the whole model
    for part in duplicate.modules():
        own = vars(part)
        if HOOK in own:
            del own[HOOK], own["forward"]
            own.pop(FORWARD)
    for name, weight in list(duplicate.named_parameters()):
        if weight.is_meta:
            fetched, device = _fetched(module, name), computes_on(module)
            owner, _, last = name.rpartition(".")
            setattr(
                duplicate.get_submodule(owner),
                last,
                nn.Parameter(fetched.to(device, weight.dtype), requires_grad=False),
            )
    return duplicate


def dispatched_like(model: Any, subject: Any) -> Any:
    """A model on the CPU, spread as another of its class is; files of its own hold what goes to disk, as long as it lives."""
    from accelerate import dispatch_model

    spread = placed_by(subject)
    assert spread is not None
    gc.collect()  # a model with hooks holds itself: one that was made before goes now, with its files
    folder = tempfile.mkdtemp(prefix="rotoscope-offload-") if "disk" in spread.values() else None
    skipped = getattr(model, "_skip_keys_device_placement", None)
    with accelerate_hushed():
        dispatched = dispatch_model(model, spread, offload_dir=folder, skip_keys=skipped)
    if folder is not None:
        weakref.finalize(dispatched, shutil.rmtree, folder, ignore_errors=True)
    return dispatched


@contextmanager
def accelerate_hushed() -> Iterator[None]:
    """Without accelerate's word on every model that is spread."""
    logger = logging.getLogger("accelerate")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def moved_files(model: nn.Module, before: Path, after: Path) -> None:
    """Let weights that are read from files of one folder be read from those of the same name in another."""
    done: set[int] = set()
    for module in model.modules():
        for hook in hooks(module):
            held = getattr(hook, "weights_map", None)
            held = getattr(held, "dataset", held)
            index: Mapping[str, dict[str, Any]] = getattr(held, "index", None) or {}
            if id(index) in done:
                continue
            done.add(id(index))
            for about in index.values():
                file = Path(about.get("safetensors_file") or "")
                if os.path.samefile(file.parent, before) if file.name else False:
                    about["safetensors_file"] = str(after / file.name)


def _around(model: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """The modules around a weight from the innermost on, with the name each has for it."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, -1, -1):
        yield ".".join(parts[cut:]), model.get_submodule(".".join(parts[:cut]))


def _fetched(model: nn.Module, name: str) -> Tensor:
    for own, module in _around(model, name):
        for hook in hooks(module):
            if getattr(hook, "offload", False) and hook.weights_map is not None:
                try:
                    weight: Tensor = hook.weights_map[own]
                except KeyError:
                    continue
                return weight.detach()
    raise _nowhere(name)


def _nowhere(name: str) -> ModelError:
    return ModelError(
        f"{name} is not in memory, and no hook of accelerate knows where it is; load the model with its weights, on a device "
        "or with a device_map"
    )


# Folders to work in, of which a killed process leaves nothing for long.
#
# Whoever works in one holds a lock on it, and a lock ends with its process, however that ends. So the next to come can tell
# what was left behind from what is still at work.


try:
    import fcntl
except ImportError:  # Windows: folders that nobody has touched for a day were left behind
    fcntl = None  # type: ignore[assignment]

SCRATCH = ".converting-"
DAY = 86400.0


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """A folder to work in, held as long as that lasts; those that killed processes left are removed first."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as holding:
        with _held(folder, wait=True):  # so that nobody finds the new folder before it is held
            _remove_leftovers(folder)
            scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=folder))
            holding.callback(shutil.rmtree, scratch, ignore_errors=True)
            holding.enter_context(_held(scratch))
        yield scratch


def _remove_leftovers(folder: Path) -> None:
    for left in folder.glob(f"{SCRATCH}*"):
        with suppress(OSError), _held(left) as free:
            if free and (fcntl is not None or time.time() - left.stat().st_mtime > DAY):
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _held(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold a folder for as long as this lasts; False where another process does and we do not wait for it."""
    if fcntl is None:
        yield True
        return
    place = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            held = True
        except OSError:
            held = False
        yield held
    finally:
        os.close(place)
