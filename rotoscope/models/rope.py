"""The angles of a GPT-J of ours, as its configuration has them.

transformers' GPT-J has no name for layers that do not rotate (`nope_layers` in our config.json), nor for another base or heads with
some frequencies only (`rotoscope_angles`: the base, and the frequency ids of each layer). Both are kept there, and put into each
layer's own table when the model is loaded here. Any other loader turns all planes as usual: another model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn, get_type_hints

import torch

from rotoscope.errors import ModelError
from rotoscope.scores.counterfactual import rope_angles
from rotoscope.settings import BASE, ROTARY_BASE

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
        valid = isinstance(own, list) and all(_number(number, int) for number in own)
        if not valid or not own or own != sorted(set(own)) or own[0] < 1 or own[-1] > planes:
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


def _refuse(problem: str) -> NoReturn:
    raise ModelError(
        f"{STORED} in config.json {problem}; it holds a base and, for each layer of a GPT-J, frequency ids in rising order"
    )


# Other rotary settings than a model's own, set in its configuration before transformers makes its rotary embedding.


Rope = str | Mapping[str, Any] | None

LENGTH, TRAINED_LENGTH = "max_position_embeddings", "original_max_position_embeddings"
LENGTHENED = ("linear", "yarn", "longrope", "llama3")
"""Types with which a model reads `factor` times as many tokens as it was trained on."""
LISTS = ("short_factor", "long_factor", "mrope_section")
EXAMPLE = "rope_type=yarn,factor=4.0"


def context_length(config: Any) -> int | None:
    """How many tokens a model can be shown; None where its configuration does not say.

    Where angles depend on the length, `max_position_embeddings` is the length that it was trained on, and `factor` times as many are meant
    to be read.
    """
    longest: int | None = getattr(config, LENGTH, None)
    rope = getattr(config, "rope_parameters", None)
    if longest is None or not isinstance(rope, dict) or rope.get("rope_type") != "dynamic":
        return longest
    return round(longest * max(1.0, float(rope.get("factor") or 1.0)))


def read_rope(rope: Rope) -> dict[str, Any]:
    """Rotary settings from a dictionary, from JSON, or from key=value pairs with commas between them."""
    if rope is None:
        return {}
    content: Any = rope
    if isinstance(rope, str):
        content = _from_json(rope) if rope.lstrip().startswith("{") else _from_pairs(rope)
    if not isinstance(content, Mapping) or not content:
        raise ModelError(f"rope holds no rotary settings; give some as JSON or as key=value, such as {EXAMPLE}")
    return dict(content)


def rope_words(rope: Mapping[str, Any]) -> str:
    """Rotary settings in a few words, for the name of a model."""
    plain = [f"{key}={value}" for key, value in rope.items() if isinstance(value, str | int | float)]
    return ", ".join(plain) or f"rope for {', '.join(rope)}"


def set_rope(config: Any, rope: Mapping[str, Any]) -> None:
    """Put rotary settings into a model's configuration.

    What `rope` does not name stays as it is; with another `rope_type`, the keys of the old type go. The types that read longer inputs
    (linear, yarn, longrope, llama3) raise max_position_embeddings to `factor` times the training length, unless `rope` names it.
    """
    from transformers.modeling_rope_utils import RopeParameters

    text = config.get_text_config()
    own = getattr(text, "rope_parameters", None)
    if not own:
        raise ModelError(
            f"the configuration of this {text.model_type} model has no rope_parameters, so its rotary settings cannot be changed; "
            "leave rope out"
        )
    changes = dict(rope)
    length = changes.pop(LENGTH, None)
    if length is not None:
        _check_value(LENGTH, length)
    layer_types = text.nested_rope_parameter_keys(own)
    if not layer_types:
        parameters = _merged(text, own, changes)
        length = length or _longer(text, parameters)
    else:
        _check_layer_types(text.model_type, layer_types, changes)
        parameters = dict(own) | {key: _merged(text, own[key] or {}, changes[key]) for key in changes}
    described = text.to_dict() | {"rope_parameters": parameters}
    if TRAINED_LENGTH in parameters and hasattr(text, TRAINED_LENGTH):
        # transformers prefers it to the one in rope_parameters
        setattr(text, TRAINED_LENGTH, parameters[TRAINED_LENGTH])
        described[TRAINED_LENGTH] = parameters[TRAINED_LENGTH]
    try:
        type(text).from_dict(described | ({LENGTH: length} if length else {}))
    except Exception as problem:  # configurations raise errors of their own
        reason = str(problem).strip().splitlines()[-1].strip().strip('"')
        raise ModelError(
            f"this {text.model_type} model cannot have these rotary settings ({reason}); transformers knows "
            f"{', '.join(get_type_hints(RopeParameters))}"
        ) from problem
    text.rope_parameters = parameters
    if length:
        setattr(text, LENGTH, length)


def check_rotary(model: Any) -> None:
    """Refuse a model whose rotary embedding is not made from rope_parameters: they would change nothing."""
    if not any(hasattr(module, "rope_type") for module in model.modules()):
        raise ModelError(
            f"this {model.config.model_type} model has no rotary embedding that transformers makes from rope_parameters, so they "
            "would change nothing; leave rope out"
        )


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise ModelError(
            f"rope is not valid JSON ({problem}); give JSON or key=value, such as {EXAMPLE}"
        ) from problem


def _from_pairs(text: str) -> dict[str, Any]:
    """Values are numbers, true, false or names."""
    pairs: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not key or not equals or not value:
            raise ModelError(f"'{part}' in rope is not key=value; give JSON or key=value, such as {EXAMPLE}")
        try:
            pairs[key] = json.loads(value)
        except ValueError:
            pairs[key] = value
    return pairs


def _merged(text: Any, own: Mapping[str, Any], changes: Any) -> dict[str, Any]:
    """A model's rotary settings with changes, for all its layers or for those of one type."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, RopeParameters

    if not isinstance(changes, Mapping):
        raise ModelError(f"rope holds {changes!r} where a dictionary of rotary settings should be")
    types = ("default", *ROPE_INIT_FUNCTIONS)
    rope_type = changes.get("rope_type", own.get("rope_type", "default"))
    if rope_type not in types:
        raise ModelError(f"unknown rope_type {rope_type!r}; transformers knows {', '.join(types)}")
    keys = get_type_hints(RopeParameters)
    for key, value in changes.items():
        if key not in keys:
            raise ModelError(f"unknown rotary setting '{key}'; transformers knows {', '.join([*keys, LENGTH])}")
        if key != "rope_type":
            _check_value(key, value)
    kept = {"rope_theta", "partial_rotary_factor", *(text.ignore_keys_at_rope_validation or ())}
    if rope_type in LENGTHENED[1:]:
        kept.add(TRAINED_LENGTH)
    if rope_type == own.get("rope_type"):
        kept |= own.keys()
    merged = (
        {key: value for key, value in own.items() if key in kept} | dict(changes) | {"rope_type": rope_type}
    )
    if rope_type in LENGTHENED[1:]:
        merged.setdefault(TRAINED_LENGTH, getattr(text, TRAINED_LENGTH, None) or getattr(text, LENGTH))
    return merged


def _longer(text: Any, parameters: Mapping[str, Any]) -> int | None:
    """How many tokens are to be read with a factor; None where the configuration's own number stands."""
    trained, factor = parameters.get(TRAINED_LENGTH, getattr(text, LENGTH, None)), parameters.get("factor")
    if parameters["rope_type"] not in LENGTHENED or trained is None or factor is None:
        return None
    return max(round(trained * factor), getattr(text, LENGTH))


def _check_value(key: str, value: Any) -> None:
    """Refuse a value that no rotary setting of this name has."""
    if key == "truncate":
        kind, valid = "true or false", isinstance(value, bool)
    elif key in LISTS:
        kind, valid = (
            "a list of positive numbers",
            isinstance(value, list | tuple) and all(map(_positive, value)),
        )
    elif key in (LENGTH, TRAINED_LENGTH):
        kind, valid = "a positive whole number", _positive(value) and isinstance(value, int)
    else:
        kind, valid = "a positive number", _positive(value)
    if not valid:
        raise ModelError(f"the rotary setting {key} must be {kind}, found {value!r}")


def _positive(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0


def _check_layer_types(model_type: str, layer_types: list[str], changes: Mapping[str, Any]) -> None:
    unknown = [key for key in changes if key not in layer_types]
    if unknown:
        raise ModelError(
            f"a {model_type} model has rotary settings for each type of layer, and '{unknown[0]}' is none of them; give a dictionary "
            f"from {' and '.join(layer_types)} to rotary settings"
        )
