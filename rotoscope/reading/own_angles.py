"""The angles of a GPT-J of ours, as its configuration has them.

transformers' GPT-J has no name for layers that do not rotate (`nope_layers` in our config.json), nor for another base or heads with
some frequencies only (`rotoscope_angles`: the base, and the frequency ids of each layer). Both are kept there, and put into each
layer's own table when the model is loaded here. Any other loader turns all planes as usual: another model.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from rotoscope.errors import ModelError
from rotoscope.maths.rotation import rope_angles
from rotoscope.settings.bounds import BASE, ROTARY_BASE

STORED = "rotoscope_angles"


def stored_angles(config: Any, planes: int) -> tuple[float, tuple[tuple[int, ...], ...]]:
    """Base and frequency ids by layer (nothing: all); what no training of ours writes is refused."""
    stored = getattr(config, STORED, None)
    if stored is None:
        return BASE, ()
    if not isinstance(stored, dict) or config.model_type != "gptj":
        _refuse(f"is {_short(stored)} in a model of type '{config.model_type}'")
    base: Any = stored.get("base")
    ids: Any = stored.get("ids")
    least, most = ROTARY_BASE.least, ROTARY_BASE.most
    if not _number(base, (int, float)) or not least < base <= most:
        _refuse(f"has the base {_short(base)}")
    if not isinstance(ids, list) or len(ids) not in (0, config.n_layer):
        _refuse(f"has ids {_short(ids)} for {config.n_layer} layers")
    for layer, own in enumerate(ids):
        whole = isinstance(own, list) and all(_number(one, int) for one in own)
        if not whole or not own or own != sorted(set(own)) or own[0] < 1 or own[-1] > planes:
            _refuse(f"has ids {_short(own)} for the {planes} planes of layer {layer}")
    return float(base), tuple(tuple(own) for own in ids)


def set_angles(model: Any) -> None:
    """Give every layer of a GPT-J of ours the table it was trained with."""
    nope = getattr(model.config, "nope_layers", None) or ()
    if not nope and getattr(model.config, STORED, None) is None:
        return
    for layer, block in enumerate(model.transformer.h):
        attention = block.attn
        n, width = attention.embed_positions.shape
        base, ids = stored_angles(model.config, width // 2)
        angles = rope_angles(width // 2, base, ids[layer] if ids else ()) * (layer not in nope)
        phases = torch.arange(n).float()[:, None] * angles
        table = torch.cat((phases.sin(), phases.cos()), dim=-1)
        attention.embed_positions = table.to(attention.embed_positions)


def _number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:40]}..."


def _refuse(found: str) -> NoReturn:
    raise ModelError(
        f"{STORED} in config.json {found}; it holds a base and, for each layer of a GPT-J, frequency ids in rising order"
    )
