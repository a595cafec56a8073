"""The same weights under other angles: a model as transformers would make it with other `rope_parameters`.

Nothing of the model is copied but its frame: the scaled model has the very same weights in memory, and a rotary embedding of its
own. The model it was made from stays as it was.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch

from rotoscope.errors import ModelError
from rotoscope.reading.subject import Subject
from rotoscope.results.context_plan import AS_IT_IS
from rotoscope.shapes import Float, Tensor


@dataclass(frozen=True)
class RopeScaling:
    """A scaling of the angles, as it stands in a config.json."""

    name: str
    rope_parameters: dict[str, Any]
    max_position_embeddings: int

    @property
    def by_length(self) -> bool:
        """Whether the angles depend on how long an input is."""
        return self.rope_parameters["rope_type"] == "dynamic"


NEEDED: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "yarn": {"factor", "original_max_position_embeddings"},
}
"""What a scaling has to say, by its rope_type, beside what the model itself says."""


def context_length(config: Any) -> int | None:
    """How many tokens a model can be shown; None where its configuration does not say.

    Where angles depend on the length, `max_position_embeddings` is the length that it was trained on, and `factor` times as many are meant
    to be read.
    """
    longest: int | None = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None)
    if longest is None or not isinstance(rope, dict) or rope.get("rope_type") != "dynamic":
        return longest
    return round(longest * max(1.0, float(rope.get("factor") or 1.0)))


PRETRAINED = 2048
"""Tokens that the embedded SmolLM2 was pretrained on; a last stage went on to those of its configuration."""
EXTENDED = (
    f"SmolLM2 was pretrained on {PRETRAINED:,} tokens, which counts as its training length here, and in a last stage trained on up to "
    "{positions:,}: beyond its training length it is no stranger to the angles as they are (--trained says otherwise)"
)


def pretrained_shorter(subject: Subject) -> bool:
    """Whether this is the model that is known to be pretrained on fewer tokens than its configuration says."""
    return subject.source.get("kind") == "embedded" and subject.model.config.model_type == "llama"


def training_length(subject: Subject) -> int:
    """How many tokens the model was trained on, as its configuration says; of the embedded SmolLM2, what it was pretrained on."""
    if pretrained_shorter(subject):
        return PRETRAINED
    found = getattr(subject.model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(found, int) or found < 1:
        raise ModelError(
            "the model's configuration does not say how many tokens it was trained on (max_position_embeddings); give it (--trained)"
        )
    return found


def check_scalable(model: Any) -> None:
    """Refuse a model whose configuration leaves no room for a scaling of the angles."""
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None)
    kind = config.model_type
    if not rope or "rope_theta" not in rope:
        nested = rope and any(isinstance(part, dict) for part in rope.values())
        why = "turns its layers by different angles" if nested else "has no rope_parameters"
        raise ModelError(f"the configuration of this {kind} model {why}, so there is no one scaling of them")
    if "mrope_section" in rope:
        raise ModelError(
            f"this {kind} model turns by the places in a picture as well, which no scaling here is made for"
        )
    if rope.get("rope_type", "default") != "default":
        raise ModelError(
            f"the angles of this {kind} model are scaled already (rope_type '{rope['rope_type']}'): take the model that it was "
            "made from"
        )
    if not _rotaries(model):
        raise ModelError(
            f"this {kind} model has no rotary embedding that transformers scales, so rope_parameters would change nothing"
        )


def rope_scaling(model: Any, name: str, trained: int, to: int) -> RopeScaling:
    """What a config.json says for a scaling from one length to another.

    linear: all angles divided by factor = to / trained. ntk: the base raised by factor^(d / (d - 2)), so that the slowest plane
    is slowed by the factor and the fastest not at all. yarn: fast planes as they are, slow ones divided, a ramp between, and all
    logits scaled. dynamic: the base raised only as far as an input is longer than the training length.
    """
    config = model.config.get_text_config()
    own, factor = copy.deepcopy(dict(config.rope_parameters)), to / trained
    if name == AS_IT_IS:
        return RopeScaling(name, own, to)
    if name == "ntk":
        d = rotary_width(config)
        changed = own | {"rope_theta": own["rope_theta"] * factor ** (d / (d - 2))}
    else:
        changed = own | {"rope_type": name, "factor": factor}
    if name == "yarn":
        changed["original_max_position_embeddings"] = trained
    # transformers takes the training length of "dynamic" from max_position_embeddings itself
    found = RopeScaling(name, changed, trained if name == "dynamic" else to)
    _check_allowed(config, found)
    return found


def check_scaling(model: Any, scaling: RopeScaling) -> None:
    """Refuse a scaling, one that was read from a file say, that is none of those above or that the model cannot be turned by."""
    config, said = model.config.get_text_config(), scaling.rope_parameters
    own, kind = dict(config.rope_parameters), said.get("rope_type")
    if kind not in NEEDED:
        raise ModelError(
            f"the scaling '{scaling.name}' has the rope_type '{kind}', and a plan has one of {', '.join(NEEDED)}: make the plan again"
        )
    missing = sorted((own.keys() | NEEDED[kind]) - said.keys())
    other = sorted(
        key for key in (own.keys() & said.keys()) - {"rope_type", "rope_theta"} if own[key] != said[key]
    )
    if missing or other:
        why = f"{missing[0]} is missing" if missing else f"{other[0]} is not that of the model"
        raise ModelError(f"the scaling '{scaling.name}' does not fit this model ({why}): make the plan again")
    _check_allowed(config, scaling)


def _check_allowed(config: Any, scaling: RopeScaling) -> None:
    """Whether transformers takes a configuration with this scaling."""
    described = config.to_dict() | {
        "rope_parameters": copy.deepcopy(scaling.rope_parameters),
        "max_position_embeddings": scaling.max_position_embeddings,
    }
    try:
        type(config).from_dict(described)
    except Exception as problem:  # what checks configurations raises errors of its own
        last = str(problem).strip().splitlines()[-1].strip()
        raise ModelError(
            f"the configuration of this {config.model_type} model forbids the scaling '{scaling.name}' ({last}): leave it out "
            "(--scaling)"
        ) from problem


def rotary_width(config: Any) -> int:
    """How many dimensions of a head rotate."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(head * (config.rope_parameters.get("partial_rotary_factor") or 1.0))


def scaled(subject: Subject, scaling: RopeScaling, longest: int | None = None) -> Subject:
    """The subject under a scaling: the same weights, another rotary embedding.

    `longest` is how many tokens it may be shown, where that is more than its config.json says. Angles that depend on the length
    remember the longest input: take a new one for every length. Their config.json stays as it is, since transformers takes the
    training length from it when the model is loaded again.
    """
    kept: dict[int, Any] = {id(weight): weight for weight in subject.model.parameters()}
    kept |= {id(buffer): buffer for buffer in subject.model.buffers()}
    model = copy.deepcopy(subject.model, kept)
    config = model.config.get_text_config()
    config.rope_parameters = copy.deepcopy(scaling.rope_parameters)
    config.max_position_embeddings = scaling.max_position_embeddings
    for path, rotary in _rotaries(model).items():
        parent, _, name = path.rpartition(".")
        setattr(
            model.get_submodule(parent), name, type(rotary)(copy.deepcopy(config)).to(rotary.inv_freq.device)
        )
    if longest is not None and not scaling.by_length:
        config.max_position_embeddings = max(longest, config.max_position_embeddings)
    return replace(subject, model=model.train(subject.model.training))


def rotation_tables(model: Any, n: int) -> tuple[Float[Tensor, "n width"], Float[Tensor, "n width"]]:
    """Cosines and sines at n positions, as the model would make them for an input of that length."""
    rotary = next(iter(_rotaries(model).values()))
    places = torch.arange(n, device=rotary.inv_freq.device)[None]
    like = torch.zeros(1, dtype=torch.float32, device=places.device)
    cos, sin = rotary(like, places)
    return cos[0], sin[0]


def _rotaries(model: Any) -> dict[str, Any]:
    """The rotary embeddings that transformers makes from `rope_parameters`, by their place."""
    return {
        path: module
        for path, module in model.named_modules()
        if hasattr(module, "inv_freq") and isinstance(getattr(module, "rope_type", None), str)
    }
