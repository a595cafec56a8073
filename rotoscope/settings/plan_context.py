"""How a model is made to read longer inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rotoscope.errors import RotoscopeError
from rotoscope.settings.bounds import amount, count
from rotoscope.settings.plan import PlanSettings, Source

Scaling = Literal["linear", "ntk", "yarn", "dynamic"]
SCALINGS: tuple[Scaling, ...] = ("linear", "ntk", "yarn", "dynamic")
LONGEST = 100_000_000


@dataclass(frozen=True, kw_only=True)
class ContextSettings(PlanSettings):
    """To which length, by which scalings of the angles, and what they are judged by."""

    title: ClassVar = "plan context: which scaling of the angles"
    bounds: ClassVar = {
        **PlanSettings.bounds,
        "to": count(LONGEST, "these are tokens of an input", least=4),
        "trained": count(LONGEST, "these are tokens of an input", least=16),
        "lengths": count(LONGEST, "these are tokens of an input", least=4),
        "asked": count(1_000_000, "these are the tokens whose loss is averaged"),
        "worse": amount(0, 100, "this is a loss"),
    }

    sources: tuple[Source, ...] = ("repeats", "text")
    """What losses are measured on: repeats (random tokens whose two copies fill the length) and text (stretches of a long one)."""
    prompts: int = 2
    """How many prompts of each source."""
    to: int = 8192
    """Tokens that the model is to read."""
    scaling: tuple[Scaling, ...] = SCALINGS
    """Scalings that are compared, beside the model as it is."""
    trained: int | None = None
    """Tokens that the model was trained on; by default what its configuration says (max_position_embeddings), of the embedded
    SmolLM2 what it was pretrained on (2,048)."""
    lengths: tuple[int, ...] | None = None
    """Longer lengths that are measured; by default twice the training length, four times, ..., up to the one asked for."""
    asked: int = 256
    """text: tokens before each length whose loss is averaged."""
    worse: float = 0.05
    """How much loss at training length a recommended scaling may cost."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if "lookup" in self.sources:
            raise RotoscopeError(
                "plan context is judged by repeats and text, which can be made of any length: leave lookup out of --sources"
            )
        for size in ("length", "pairs", "passage"):
            if getattr(self, size) is not None:
                raise RotoscopeError(
                    f"--{size} means nothing for plan context, whose prompts fill the lengths that are measured (--lengths)"
                )
        if self.lengths is not None and max(self.lengths) > self.to:
            raise RotoscopeError(
                f"lengths are measured up to the one that is asked for, {self.to} (--to), found {list(self.lengths)}"
            )

    def all_lengths(self, trained: int) -> tuple[int, ...]:
        """The training length, the longer ones that are measured, and the one that is asked for."""
        if self.to <= trained:
            raise RotoscopeError(
                f"the model was trained on {trained:,} tokens, so {self.to:,} (--to) need no scaling; ask for more, or say on how "
                "many tokens it was really trained (--trained)"
            )
        longer = self.lengths
        if longer is None:
            longer = tuple(trained * 2**k for k in range(1, 64) if trained * 2**k < self.to)
        if min(longer, default=self.to) <= trained:
            raise RotoscopeError(
                f"lengths beyond the training length of {trained:,} tokens are measured, found {list(longer)} (--lengths)"
            )
        return tuple(sorted({trained, *longer, self.to}))
