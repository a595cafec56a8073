"""What a profile is expected to take, before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from rotoscope.analysis.batches import Batch, batches
from rotoscope.analysis.nulls import CALIBRATION_BATCHES, MOST_KEPT
from rotoscope.analysis.profiling import BATCH_TOKENS
from rotoscope.maths.swaps import TILE
from rotoscope.reading import Subject
from rotoscope.reading.devices import free_memory
from rotoscope.settings import ProfileSettings
from rotoscope.tasks.prompts import Prompts

SECONDS_PER_PLANE_LOGIT = 2.5e-9  # measured on two CPU cores; only for the estimate
RUNTIME = 0.48e9  # torch, transformers and ourselves
SMALL_THINGS = 0.05e9
# How many tensors of their kind are alive at the worst moment, measured: benchmarks/memory.py
SWAP_TENSORS, ENTRY_TENSORS, HEAD_TENSORS = 20, 3, 12


@dataclass(frozen=True)
class Estimate:
    """What a profile is expected to take."""

    prompts: int
    tokens: int
    gigabytes: float
    plane_logits: float = 0.0
    """Logits of single planes per prompt, when frequencies are asked for."""
    more_gigabytes: float = 0.0
    """What of the memory is not taken yet: the model is loaded already."""
    free_gigabytes: float | None = None
    """What is free, where the system says so."""

    @property
    def fits(self) -> bool:
        """Whether what is still to be taken is free."""
        return self.free_gigabytes is None or self.more_gigabytes <= self.free_gigabytes

    def __str__(self) -> str:
        text = f"{self.prompts} prompts of up to {self.tokens} tokens, about {self.gigabytes:.1f} GB of memory"
        if not self.fits:
            text += (
                f", {self.more_gigabytes:.1f} GB more than now, and {self.free_gigabytes:.1f} GB are free: "
                "it may not fit; use fewer or larger blocks, shorter prompts or a smaller model"
            )
        if self.plane_logits:
            seconds = self.plane_logits * SECONDS_PER_PLANE_LOGIT
            text += (
                f"; single frequencies: {self.plane_logits / 1e6:.0f} million logits a prompt, "
                f"roughly {seconds:.1f} s each on two CPU cores"
            )
        return text


def estimate(subject: Subject, prompts: Prompts, settings: ProfileSettings) -> Estimate:
    """Memory before the work starts: the weights, those of a random null, and the largest batch's worst moment."""
    config = subject.model.config.get_text_config()
    parameters = list(subject.model.parameters())
    weights = sum(p.numel() * p.element_size() for p in parameters)
    most = settings.batch_tokens or BATCH_TOKENS.get(subject.device.type, BATCH_TOKENS["cpu"])
    work = batches(prompts, settings.positions, most)
    more = SMALL_THINGS + max(_batch_bytes(config, batch) for batch in work)
    if settings.null == "random":
        more += 4 * sum(p.numel() for p in parameters)  # made in float32
        more += min(MOST_KEPT, sum(_key_bytes(config, batch) for batch in work[:CALIBRATION_BATCHES]))
    free = free_memory(subject.device)
    planes = 0.0
    if settings.frequencies:
        n, heads = prompts.longest, _heads(config)
        swapped = max((len(p.blocks) if p.blocks is not None else n) for p in prompts)
        chosen = settings.single_heads
        count = heads * config.num_hidden_layers if chosen is None else len(chosen)
        planes = float(count * (_width(config) // 2) * n * swapped)
    return Estimate(
        len(prompts),
        prompts.longest,
        (RUNTIME + weights + more) / 1e9,
        planes,
        more / 1e9,
        None if free is None else free / 1e9,
    )


def _batch_bytes(config: object, batch: Batch) -> float:
    """One layer at its worst moment: its feed-forward part, or the scoring of its heads, which come one after the other."""
    prompts, n = len(batch.prompts), len(batch.prompts[0].tokens)
    blocks = batch.blocks_for(batch.queries[-1])
    heads, hidden = _heads(config), int(getattr(config, "hidden_size", 0))
    wide = int(getattr(config, "intermediate_size", 0) or 4 * hidden)
    swaps = min(len(blocks), TILE) * len(blocks)
    forward = n * (3 * wide + 8 * hidden)
    scoring = heads * (
        SWAP_TENSORS * swaps
        + ENTRY_TENSORS * (max(blocks.lengths) * swaps if max(blocks.lengths) > 1 else 0)
        + HEAD_TENSORS * n * _width(config)
    )
    mask = n * n if getattr(config, "sliding_window", None) else 0  # one for all prompts and heads
    logits = int(getattr(config, "vocab_size", 0)) * max(1, len(batch.asked_at))
    return 4.0 * (prompts * (max(forward, scoring) + logits) + mask)


def _key_bytes(config: object, batch: Batch) -> float:
    """The keys of all layers on one batch."""
    wide = int(getattr(config, "num_key_value_heads", None) or _heads(config)) * _width(config)
    tokens = len(batch.prompts) * len(batch.prompts[0].tokens)
    return 4.0 * int(getattr(config, "num_hidden_layers", 1)) * tokens * wide


def _heads(config: object) -> int:
    return int(getattr(config, "num_attention_heads", 1))


def _width(config: object) -> int:
    """Dimensions of a head."""
    return int(getattr(config, "head_dim", None) or getattr(config, "hidden_size", 0) // _heads(config))
