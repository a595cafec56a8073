"""What a profile is expected to take, before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from rotoscope.reading import Subject
from rotoscope.settings import ProfileSettings
from rotoscope.tasks.prompts import Prompts

SECONDS_PER_PLANE_LOGIT = 2.5e-9  # measured on two CPU cores; only for the estimate


@dataclass(frozen=True)
class Estimate:
    """What a profile is expected to take."""

    prompts: int
    tokens: int
    gigabytes: float
    plane_logits: float = 0.0
    """Logits of single planes per prompt, when frequencies are asked for."""

    def __str__(self) -> str:
        text = f"{self.prompts} prompts of up to {self.tokens} tokens, about {self.gigabytes:.1f} GB of memory"
        if self.plane_logits:
            seconds = self.plane_logits * SECONDS_PER_PLANE_LOGIT
            text += (
                f"; single frequencies: {self.plane_logits / 1e6:.0f} million logits a prompt, "
                f"roughly {seconds:.1f} s each on two CPU cores"
            )
        return text


def estimate(subject: Subject, prompts: Prompts, settings: ProfileSettings) -> Estimate:
    """Memory before the work starts: weights, one layer's activations, one layer's entries between blocks."""
    config = subject.model.config.get_text_config()
    weights = sum(p.numel() * p.element_size() for p in subject.model.parameters())
    n = prompts.longest
    most = max((len(p.blocks) if p.blocks is not None else n) for p in prompts)
    heads = int(getattr(config, "num_attention_heads", 1))
    wide = int(getattr(config, "intermediate_size", 0) or 4 * config.hidden_size)
    activations = 4 * n * (3 * wide + 8 * int(config.hidden_size))
    entries = 4 * heads * (3 * n * most + 12 * min(most, 128) * most)
    vocabulary = 4 * int(config.vocab_size) * max(len(p.queries) for p in prompts)
    runtime = 0.35e9  # torch and transformers themselves
    planes = 0.0
    if settings.frequencies:
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        chosen = settings.single_heads
        count = heads * config.num_hidden_layers if chosen is None else len(chosen)
        planes = float(count * (width // 2) * n * most)
    return Estimate(len(prompts), n, (weights + activations + entries + vocabulary + runtime) / 1e9, planes)
