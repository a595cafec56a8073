"""GPT-J as a few tensor operations: trained here, stored and loaded as transformers' own GPTJForCausalLM.

Each block normalises once and runs attention and MLP beside one another. Rotation turns neighbouring pairs of
dimensions, so queries and keys are held as complex numbers, one per plane, and a turn is one product. Planes beyond the
rotary dimensions, and all planes of a NoPE layer, have the angle 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from rotoscope.errors import ModelError
from rotoscope.shapes import Float, Int, Tensor

__all__ = ["GPTJ", "GPTJShape", "LayerState", "as_real"]


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


@dataclass(frozen=True)
class LayerState:
    """What one layer works with: its input, and its un-rotated queries and keys as complex planes."""

    layer: int
    residual: Float[Tensor, "batch n width"]
    query: Tensor
    """[batch, heads, n, planes], complex."""
    key: Tensor
    angles: Float[Tensor, "planes"]
    rotates: bool

    def turns(self, n: int) -> Tensor:
        """e^(i p g) for positions 0 .. n - 1 [n, planes]: what rotation multiplies queries and keys with."""
        places = torch.arange(n, device=self.angles.device, dtype=torch.float64)
        phases = places[:, None] * self.angles.double()
        return torch.complex(phases.cos(), phases.sin()).to(self.query.dtype)


def as_real(planes: Tensor) -> Tensor:
    """Complex planes as neighbouring pairs of dimensions, the form products are taken in."""
    return torch.view_as_real(planes).flatten(-2)


Visit = Callable[[LayerState], None]
Mask = Callable[[int], Tensor | None]


class GPTJ:
    """Weights by transformers' own names, with q, k and v of a layer stored as one matrix."""

    def __init__(self, shape: GPTJShape, weights: dict[str, Tensor]) -> None:
        self.shape = shape
        self.weights = weights
        half = torch.arange(0, shape.rotary, 2, dtype=torch.int64) / shape.rotary
        angles = torch.zeros(shape.head_width // 2)
        angles[: shape.rotary // 2] = 1.0 / (10000**half)
        self.angles = angles.to(self.device)
        """How far each plane turns per position; a NoPE layer turns none of them."""
        self._turns: dict[int, Tensor] = {}

    @classmethod
    def initialise(cls, shape: GPTJShape, seed: int, device: str | torch.device = "cpu") -> GPTJ:
        """Fresh weights: normal with standard deviation 0.02, biases 0; drawn on the CPU, so equal everywhere."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator) * 0.02

        d, inner = shape.width, 4 * shape.width
        made = {"transformer.wte.weight": normal(shape.vocabulary, d)}
        for layer in range(shape.layers):
            front = f"transformer.h.{layer}."
            made[front + "ln_1.weight"], made[front + "ln_1.bias"] = torch.ones(d), torch.zeros(d)
            made[front + "attn.qkv.weight"] = normal(3 * d, d)
            made[front + "attn.out_proj.weight"] = normal(d, d)
            made[front + "mlp.fc_in.weight"], made[front + "mlp.fc_in.bias"] = (
                normal(inner, d),
                torch.zeros(inner),
            )
            made[front + "mlp.fc_out.weight"], made[front + "mlp.fc_out.bias"] = (
                normal(d, inner),
                torch.zeros(d),
            )
        made["transformer.ln_f.weight"], made["transformer.ln_f.bias"] = torch.ones(d), torch.zeros(d)
        made["lm_head.weight"], made["lm_head.bias"] = (
            normal(shape.vocabulary, d),
            torch.zeros(shape.vocabulary),
        )
        return cls(shape, {name: weight.to(device) for name, weight in made.items()})

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights["lm_head.bias"].device

    def logits(
        self,
        tokens: Int[Tensor, "batch n"],
        *,
        dropout: float = 0.0,
        visit: Visit | None = None,
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch vocabulary"]:
        """What the model says after the last token.

        `visit` is shown every layer's input, queries and keys; `mask(layer)` may say which keys [batch, n, n] each
        position sees there, instead of all up to itself.
        """
        residual = self.residual(tokens, dropout=dropout, visit=visit, mask=mask)
        return self.decode(residual[:, -1])

    def decode(self, residual: Float[Tensor, "... width"]) -> Float[Tensor, "... vocabulary"]:
        """The next-token logits a residual stream stands for."""
        w = self.weights
        last = F.layer_norm(
            residual, (self.shape.width,), w["transformer.ln_f.weight"], w["transformer.ln_f.bias"]
        )
        return F.linear(last, w["lm_head.weight"], w["lm_head.bias"])

    def residual(
        self,
        tokens: Int[Tensor, "batch n"],
        *,
        dropout: float = 0.0,
        visit: Visit | None = None,
        mask: Mask | None = None,
        resume: tuple[int, Tensor] | None = None,
    ) -> Float[Tensor, "batch n width"]:
        """The residual stream after the last layer; `resume` goes on from what entered some layer."""
        n = tokens.shape[1]
        if n > self.shape.positions:
            raise ModelError(f"{n} tokens are more than the {self.shape.positions} positions of the model")

        def dropped(x: Tensor) -> Tensor:
            return F.dropout(x, dropout) if dropout else x

        turns = self._turned(n)
        first, x = resume or (0, dropped(F.embedding(tokens, self.weights["transformer.wte.weight"])))
        for layer in range(first, self.shape.layers):
            front = f"transformer.h.{layer}."
            w = {name: self.weights[front + name] for name in _BLOCK}
            inside = F.layer_norm(x, (self.shape.width,), w["ln_1.weight"], w["ln_1.bias"])
            mixed = F.linear(inside, w["attn.qkv.weight"])
            mixed = mixed.unflatten(-1, (3, self.shape.heads, self.shape.head_width)).permute(2, 0, 3, 1, 4)
            both = torch.view_as_complex(mixed[:2].contiguous().unflatten(-1, (-1, 2)))
            if visit is not None:
                visit(
                    LayerState(layer, x, both[0], both[1], self.angles_of(layer), layer not in self.shape.nope)
                )
            turned = both if layer in self.shape.nope else both * turns
            query, key = as_real(turned)
            seen = mask(layer) if mask is not None else None
            attended = F.scaled_dot_product_attention(
                query,
                key,
                mixed[2],
                attn_mask=None if seen is None else seen[:, None],
                is_causal=seen is None,
                dropout_p=dropout,
            )
            attended = F.linear(attended.transpose(1, 2).flatten(-2), w["attn.out_proj.weight"])
            wide = F.gelu(F.linear(inside, w["mlp.fc_in.weight"], w["mlp.fc_in.bias"]), approximate="tanh")
            thought = F.linear(wide, w["mlp.fc_out.weight"], w["mlp.fc_out.bias"])
            x = x + dropped(attended) + dropped(thought)
        return x

    def angles_of(self, layer: int) -> Float[Tensor, "planes"]:
        """The angles of a layer's planes; ids count from 1 in this order."""
        return torch.zeros_like(self.angles) if layer in self.shape.nope else self.angles

    def _turned(self, n: int) -> Tensor:
        """e^(i p g) for all positions and planes, in the float32 arithmetic of the model's own tables."""
        if n not in self._turns:
            phases = torch.arange(n).float()[:, None] * self.angles.cpu()
            self._turns = {n: torch.complex(phases.cos(), phases.sin()).to(self.device)}
        return self._turns[n]

    def config(self) -> Any:
        """The same sizes as a transformers configuration."""
        from transformers import GPTJConfig

        shape = self.shape
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
        )

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
        config = model.config
        if config.model_type != "gptj":
            raise ModelError(f"this works on GPT-J models, found one of type '{config.model_type}'")
        shape = GPTJShape(
            vocabulary=config.vocab_size,
            layers=config.n_layer,
            heads=config.n_head,
            width=config.n_embd,
            rotary=config.rotary_dim,
            nope=tuple(getattr(config, "nope_layers", ()) or ()),
            positions=config.n_positions,
            dropout=config.resid_pdrop,
        )
        device = next(model.parameters()).device
        return cls.from_state(shape, model.state_dict(), device)


_BLOCK = (
    "ln_1.weight",
    "ln_1.bias",
    "attn.qkv.weight",
    "attn.out_proj.weight",
    "mlp.fc_in.weight",
    "mlp.fc_in.bias",
    "mlp.fc_out.weight",
    "mlp.fc_out.bias",
)
_ENDS = (
    "transformer.wte.weight",
    "transformer.ln_f.weight",
    "transformer.ln_f.bias",
    "lm_head.weight",
    "lm_head.bias",
)


def _names(shape: GPTJShape) -> list[str]:
    return [*_ENDS, *(f"transformer.h.{layer}.{name}" for layer in range(shape.layers) for name in _BLOCK)]
