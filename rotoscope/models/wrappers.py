"""Models inside what torch, TransformerLens or nnsight made of them, told by the names of classes; no library is imported."""

from __future__ import annotations

import os
from typing import Any

import torch

from rotoscope.errors import ModelError
from rotoscope.models.offloading import not_loaded
from rotoscope.models.reader import HeadReader


def unwrapped(model: Any) -> Any:
    """The model inside `torch.compile` and data parallelism; anything else as it is."""
    while True:
        names = {kind.__name__ for kind in type(model).__mro__}
        if "OptimizedModule" in names:
            model = model._orig_mod
        elif names & {"DistributedDataParallel", "DataParallel"}:
            model = model.module
        else:
            return model


def plain_model(source: Any) -> Any:
    """The transformers model inside what torch or another library made of it; anything else as it is.

    nnsight's models and TransformerLens' bridges hold one, and it is read where that can be proven. A HookedTransformer is
    written anew, so there is none inside.
    """
    source = unwrapped(source)
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(source).__mro__}
    libraries = {library for library, _ in kinds}
    name = type(source).__name__
    if "nnsight" in libraries:
        inside = next((vars(source)[key] for key in ("_module", "_model") if key in vars(source)), None)
    elif ("transformer_lens", "TransformerBridge") in kinds:
        inside = getattr(source, "original_model", None)
    elif "transformer_lens" in libraries:
        raise ModelError(
            f"a {name} is transformers' model written anew by TransformerLens, and what is measured here is the model itself; "
            f"write {_instead(source)}"
        )
    else:
        return source
    inside = unwrapped(inside)
    if not isinstance(inside, torch.nn.Module):
        raise ModelError(f"a {name} without a model inside; write {_instead(source)}")
    if not_loaded(inside):
        raise ModelError(
            f"the weights of this {name} are not in memory yet; write model.dispatch() first, or make it with dispatch=True"
        )
    if hasattr(getattr(inside, "config", None), "model_type"):
        try:
            HeadReader(inside)
        except ModelError as problem:
            raise ModelError(
                f"the model inside this {name} cannot be read as it is ({problem}); write {_instead(source, inside)}"
            ) from problem
    return inside


def _instead(*holders: Any) -> str:
    """The line that loads the plain model, with its name where one of the holders knows it."""
    about = [(one, "name_or_path") for one in holders]
    about += [(getattr(one, "cfg", None), key) for one in holders for key in ("tokenizer_name", "model_name")]
    names = (getattr(one, key, None) for one, key in about)
    name = next((found for found in names if isinstance(found, str) and found), "ORG/NAME")
    return f'rs.load("{name if os.path.isdir(name) else f"hf:{name}"}")'
