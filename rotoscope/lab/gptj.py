"""GPT-J as a few tensor operations: trained here, stored and loaded as transformers' own GPTJForCausalLM.

Each block normalises once and runs attention and MLP beside one another. Rotation turns neighbouring pairs of
dimensions, so queries and keys are held as complex numbers, one per plane, and a turn is one product. Planes beyond the
rotary dimensions, and all planes of a NoPE layer, have the angle 0. Heads can be restricted to some frequencies
(`rotoscope.lab.settings` says what that means).

Several models can be one (`GPTJ.stack`): weights, and what is computed with them, then have an axis of models in front;
so have the angles, where they differ.

This model is for training, and for scoring while training. It counts as read only after `GPTJ.prove` has compared it with
what the reader takes out of the same weights in transformers' own model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from rotoscope.errors import ModelError, UnprovenError
from rotoscope.lab.stacked_layer import Drawing, at_once, block, embedded, linear, normed
from rotoscope.models.layer import LayerReading
from rotoscope.models.reader import PROOF_TOLERANCE, HeadReader
from rotoscope.models.rope import STORED, set_angles, stored_angles
from rotoscope.scores.counterfactual import counterfactual_logits, rope_angles
from rotoscope.settings import BASE
from rotoscope.shapes import Float, Int, Tensor


@dataclass(frozen=True)
class GPTJShape:
    """Sizes of a GPT-J. The default is P2's: twelve layers of one head."""

    vocabulary: int
    layers: int = 12
    heads: int = 1
    width: int = 128
    rotary: int = 128
    """How many dimensions of each head rotate."""
    nope: tuple[int, ...] = ()
    """Layers that do not rotate at all."""
    positions: int = 8192
    dropout: float = 0.1
    base: float = BASE
    ids: tuple[tuple[int, ...], ...] = ()
    """The frequency ids that each layer's planes are dealt out over; nothing: all of them in every layer."""

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise ModelError(f"a width of {self.width} does not split into {self.heads} heads of an even size")
        if not 0 <= self.rotary <= self.head_width or self.rotary % 2:
            raise ModelError(
                f"rotary dimensions must be even and at most {self.head_width} (one head), found {self.rotary}"
            )
        if not set(self.nope) <= set(range(self.layers)):
            raise ModelError(f"NoPE layers {list(self.nope)} are not all among the {self.layers} layers")
        if not self.rotary or len(set(self.nope)) == self.layers:
            raise ModelError("no layer would rotate; leave rotary dimensions to at least one")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def weights(self) -> int:
        """How many numbers the model has."""
        words = 2 * self.vocabulary * self.width + self.vocabulary
        return words + 2 * self.width + self.layers * (12 * self.width**2 + 7 * self.width)

    @property
    def angles(self) -> Float[Tensor, "layers planes"]:
        """How far each plane turns per position."""
        angles = torch.zeros(self.layers, self.head_width // 2)
        for layer in set(range(self.layers)) - set(self.nope):
            ids = self.ids[layer] if self.ids else ()
            angles[layer, : self.rotary // 2] = rope_angles(self.rotary // 2, self.base, ids)
        return angles

    @classmethod
    def from_config(cls, config: Any) -> GPTJShape:
        """The sizes in a transformers configuration."""
        if config.model_type != "gptj":
            raise ModelError(f"this works on GPT-J models, found one of type '{config.model_type}'")
        base, ids = stored_angles(config, config.rotary_dim // 2)
        return cls(
            vocabulary=config.vocab_size,
            layers=config.n_layer,
            heads=config.n_head,
            width=config.n_embd,
            rotary=config.rotary_dim,
            nope=tuple(getattr(config, "nope_layers", ()) or ()),
            positions=config.n_positions,
            dropout=config.resid_pdrop,
            base=base,
            ids=ids,
        )


@dataclass(frozen=True)
class LayerState:
    """What one layer works with: its input, and its un-rotated queries and keys as complex planes."""

    layer: int
    residual: Float[Tensor, "*models batch n width"]
    query: Tensor
    """[*models, batch, heads, n, planes], complex."""
    key: Tensor
    angles: Float[Tensor, "*models planes"]


def head_logits(
    states: Sequence[LayerState], position: int
) -> Float[Tensor, "layers *models batch heads keys_and_query keys_and_query"]:
    """Counterfactual logits at a position, of all these layers at once."""
    query = torch.stack([torch.view_as_real(state.query[..., position, :]) for state in states])
    keys = torch.stack([torch.view_as_real(state.key[..., : position + 1, :]) for state in states])
    angles = torch.stack([state.angles for state in states])  # [layers, *models, planes]
    angles = angles[(..., *(None,) * (query.ndim - 1 - angles.ndim), slice(None))]
    return counterfactual_logits(query, keys, angles, (2 * keys.shape[-2]) ** -0.5)


def _as_real(planes: Tensor) -> Tensor:
    """Complex planes as neighbouring pairs of dimensions, the form products are taken in."""
    return torch.view_as_real(planes).flatten(-2)


Visit = Callable[[LayerState], None]


class GPTJ:
    """Weights by transformers' own names, with q, k and v of a layer stored as one matrix."""

    def __init__(self, shape: GPTJShape, weights: dict[str, Tensor]) -> None:
        self.shape = shape
        self.weights = weights
        self.angles: Float[Tensor, "*models layers planes"] = shape.angles.to(self.device)
        """How far each plane turns per position; a NoPE layer turns none of them."""
        self.each: list[GPTJ] = [self]
        """The models that are stacked here, by themselves: they live in the memory of the stack and change with it."""
        self.proof: float | None = None
        """The largest difference `prove` found; None before."""
        self._turns: dict[int, Tensor] = {}

    @classmethod
    def stack(cls, models: Sequence[GPTJ]) -> GPTJ:
        """Several models of one shape as one, their angles aside; shorter vocabularies are filled up with words that mean nothing."""
        words = max(model.shape.vocabulary for model in models)
        stacked = {}
        for name in models[0].weights:
            parts = [model.weights[name] for model in models]
            stacked[name] = parts[0].new_zeros(len(parts), *max(part.shape for part in parts))
            for place, part in zip(stacked[name], parts, strict=True):
                place[: len(part)] = part
        stack = cls(replace(models[0].shape, vocabulary=words), stacked)
        stack.each = [
            cls(model.shape, {name: stacked[name][k, : len(part)] for name, part in model.weights.items()})
            for k, model in enumerate(models)
        ]
        if any(not torch.equal(model.angles, stack.angles) for model in models):
            stack.angles = torch.stack([model.angles for model in models])
        return stack

    @classmethod
    def initialise(cls, shape: GPTJShape, seed: int, device: str | torch.device = "cpu") -> GPTJ:
        """Fresh weights: normal with standard deviation 0.02, biases 0; drawn on the CPU, so equal everywhere."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator) * 0.02

        d, inner = shape.width, 4 * shape.width
        weights = {"transformer.wte.weight": normal(shape.vocabulary, d)}
        for layer in range(shape.layers):
            front = f"transformer.h.{layer}."
            weights[front + "ln_1.weight"], weights[front + "ln_1.bias"] = torch.ones(d), torch.zeros(d)
            weights[front + "attn.qkv.weight"] = normal(3 * d, d)
            weights[front + "attn.out_proj.weight"] = normal(d, d)
            for name, size in (("mlp.fc_in", (inner, d)), ("mlp.fc_out", (d, inner))):
                weights[f"{front}{name}.weight"], weights[f"{front}{name}.bias"] = (
                    normal(*size),
                    torch.zeros(size[0]),
                )
        weights["transformer.ln_f.weight"], weights["transformer.ln_f.bias"] = torch.ones(d), torch.zeros(d)
        weights["lm_head.weight"] = normal(shape.vocabulary, d)
        weights["lm_head.bias"] = torch.zeros(shape.vocabulary)
        return cls(shape, {name: weight.to(device) for name, weight in weights.items()})

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights["lm_head.bias"].device

    def logits(
        self,
        tokens: Int[Tensor, "*models batch n"],
        *,
        dropout: float = 0.0,
        drawing: Drawing = at_once,
        visit: Visit | None = None,
        block: Callable[..., Tensor] = block,
    ) -> Float[Tensor, "*models batch vocabulary"]:
        """What the model says after the last token; `visit` is shown every layer's input, queries and keys.

        `block` is the formula of a layer, as it is or compiled.
        """
        n = tokens.shape[-1]
        if n > self.shape.positions:
            raise ModelError(f"{n} tokens are more than the {self.shape.positions} positions of the model")
        turns = self._turned(n)
        x = embedded(tokens, self.weights["transformer.wte.weight"])
        x = drawing(partial(F.dropout, p=dropout), x) if dropout else x
        for layer in range(self.shape.layers):
            w = {name: self.weights[f"transformer.h.{layer}.{name}"] for name in _BLOCK}
            show = None if visit is None else partial(self._show, visit, layer, x)
            turned = None if layer in self.shape.nope else turns[layer]
            x = block(x, w, turned, self.shape.heads, dropout, drawing, show)
        w = self.weights
        last = normed(x[..., -1, :], w["transformer.ln_f.weight"], w["transformer.ln_f.bias"])
        return linear(last, w["lm_head.weight"], w["lm_head.bias"])

    def _show(self, visit: Visit, layer: int, x: Tensor, query_and_key: Tensor) -> None:
        """What one layer works with, to whoever looks."""
        query, key = torch.view_as_complex(query_and_key)
        visit(LayerState(layer, x, query, key, self.angles_of(layer)))

    @torch.no_grad()
    def prove(self, reader: HeadReader | None = None) -> float:
        """Compare queries, keys, angles, logits of the heads and of the model with what a reader reads.

        The reader is one of the same weights in a transformers model, which is made where none is given. Returns, and
        keeps as `proof`, the largest difference relative to the size of what was compared.
        """
        reference = reader or HeadReader(self.to_transformers())
        states: list[LayerState] = []
        layers: list[LayerReading] = []
        tokens = reference.proof_tokens
        n = tokens.shape[1]
        places = torch.arange(n, device=tokens.device)
        shuffled = torch.randperm(n, generator=torch.Generator().manual_seed(0)).to(tokens.device)
        read = reference.read(tokens, tuple(range(n)), layers.append)[:, 0]
        differences = {"next-token logits": _difference(self.logits(tokens, visit=states.append), read)}
        for state, heads in zip(states, layers, strict=True):
            computed, read = head_logits([state], n - 1)[0], heads.at(n - 1).logits()
            moved = [logits[..., places, shuffled].softmax(-1) for logits in (computed, read)]
            angles = F.pad(heads.layout.angles, (0, len(state.angles) - heads.layout.planes))
            off = (state.angles.double().cpu() - angles).abs() / angles.clamp(min=1e-30)
            layer, queries = f"of layer {state.layer}", heads.query.flatten(1, 2)
            differences |= {
                f"queries {layer}": _difference(_as_real(state.query), queries),
                f"keys {layer}": _difference(_as_real(state.key), heads.keys),
                f"angles {layer}": float(off.max()),
                f"head logits {layer}": _difference(computed, read),
                f"attention {layer} after a permutation": _difference(*moved),
            }
        worst = max(differences, key=lambda name: differences[name])
        if not differences[worst] <= PROOF_TOLERANCE:
            raise UnprovenError(
                f"the GPT-J that is trained here and transformers' own differ in the {worst} by {differences[worst]:.2g} "
                f"(allowed {PROOF_TOLERANCE:g}); scores of the model in training would be wrong, so none are given"
            )
        self.proof = differences[worst]
        return self.proof

    def angles_of(self, layer: int) -> Float[Tensor, "*models planes"]:
        """The angles of a layer's planes; ids count from 1 in this order."""
        return self.angles[..., layer, :]

    def _turned(self, n: int) -> Tensor:
        """(cos, sin) of p g for all layers, positions and planes, in the float32 arithmetic of the model's own tables.

        Where the models of a stack differ, with axes of models, batch and heads after that of the layers.
        """
        if n not in self._turns:
            phases = torch.arange(n).float()[:, None] * self.angles.cpu().unsqueeze(-2)
            turns = torch.stack((phases.cos(), phases.sin()), -1)
            self._turns = {
                n: (turns.movedim(1, 0)[:, :, None, None] if turns.ndim > 4 else turns).to(self.device)
            }
        return self._turns[n]

    def config(self) -> Any:
        """The same sizes as a transformers configuration."""
        from transformers import GPTJConfig

        shape = self.shape
        restricted = shape.ids or shape.base != BASE
        return GPTJConfig(
            vocab_size=shape.vocabulary,
            n_positions=shape.positions,
            n_embd=shape.width,
            n_layer=shape.layers,
            n_head=shape.heads,
            rotary_dim=shape.rotary,
            n_inner=4 * shape.width,
            activation_function="gelu_new",
            resid_pdrop=shape.dropout,
            embd_pdrop=shape.dropout,
            attn_pdrop=shape.dropout,
            tie_word_embeddings=False,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=shape.vocabulary - 1,
            architectures=["GPTJForCausalLM"],
            **({"nope_layers": list(shape.nope)} if shape.nope else {}),
            **(
                {STORED: {"base": shape.base, "ids": [list(layer) for layer in shape.ids]}}
                if restricted
                else {}
            ),
        )

    def to_transformers(self) -> Any:
        """The same model as a transformers GPTJForCausalLM."""
        from transformers import GPTJForCausalLM

        # Weights drawn here are replaced, and must not shift other draws.
        with torch.random.fork_rng(devices=[]):
            model = GPTJForCausalLM(self.config())
        model.load_state_dict(self.state())
        set_angles(model)
        return model.to(self.device).eval()

    def state(self) -> dict[str, Tensor]:
        """The weights as transformers stores them: q, k and v apart."""
        state: dict[str, Tensor] = {}
        for name, weight in self.weights.items():
            if name.endswith("attn.qkv.weight"):
                for part, piece in zip("qkv", weight.detach().chunk(3), strict=True):
                    state[name.replace("qkv", f"{part}_proj")] = piece.clone()
            else:
                state[name] = weight.detach().clone()
        return state

    @classmethod
    def from_state(cls, shape: GPTJShape, state: dict[str, Tensor], device: str | torch.device = "cpu") -> GPTJ:
        """Read weights back, in whatever precision they were stored; computing is in float32."""
        weights = {}
        for name, weight in state.items():
            if name.endswith("attn.q_proj.weight"):
                parts = [state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
                weights[name.replace("q_proj", "qkv")] = torch.cat(parts)
            elif not name.endswith(("attn.k_proj.weight", "attn.v_proj.weight")):
                weights[name] = weight
        weights = {name: weight.detach().float().to(device).contiguous() for name, weight in weights.items()}
        missing = set(_names(shape)) ^ set(weights)
        if missing:
            raise ModelError(f"these are not the weights of such a GPT-J: {sorted(missing)[0]} does not fit")
        return cls(shape, weights)

    @classmethod
    def from_transformers(cls, model: Any) -> GPTJ:
        """The same model, read off a transformers GPTJForCausalLM in memory."""
        shape = GPTJShape.from_config(model.config)
        return cls.from_state(shape, model.state_dict(), next(model.parameters()).device)


_BOTH = ("weight", "bias")
_BLOCK = (
    "attn.qkv.weight",
    "attn.out_proj.weight",
    *(f"{part}.{kind}" for part in ("ln_1", "mlp.fc_in", "mlp.fc_out") for kind in _BOTH),
)
_ENDS = (
    "transformer.wte.weight",
    *(f"{part}.{kind}" for part in ("transformer.ln_f", "lm_head") for kind in _BOTH),
)


def _names(shape: GPTJShape) -> list[str]:
    return [*_ENDS, *(f"transformer.h.{layer}.{name}" for layer in range(shape.layers) for name in _BLOCK)]


def _difference(computed: Tensor, reference: Tensor) -> float:
    """The largest difference, relative to the largest value; NaN is the largest of all."""
    difference = float((computed - reference).abs().max() / reference.abs().max())
    return math.inf if math.isnan(difference) else difference
