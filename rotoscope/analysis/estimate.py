"""What a profile is expected to take, before it starts and, where prompts are many, before they are made."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from rotoscope.analysis import known
from rotoscope.analysis.batches import Batch, batches
from rotoscope.analysis.nulls import CALIBRATION_BATCHES, MOST_KEPT
from rotoscope.analysis.prompts import make_prompts
from rotoscope.maths.swaps import ROOM, TILE
from rotoscope.reading import Subject
from rotoscope.reading.cost import SPEEDS, Cost, Speed, forward_seconds, how_long, size_of, speed_on
from rotoscope.reading.devices import free_memory
from rotoscope.reading.offloaded import placed_by
from rotoscope.reading.overhearing import ROOM as CHUNK_ROOM
from rotoscope.settings import DepthsSettings, ProfileSettings, PromptSettings
from rotoscope.settings.prompts import DRAWN
from rotoscope.tasks.prompts import Prompt, Prompts

BATCH_TOKENS = {"cpu": 1024, "cuda": 16384}
BYTES_PER_ROW = 300.0
"""A row of the table, per prompt, query, layer, head and tau, with the copies made of it."""
END = 0.7
"""What is left of a pass when the beginning of the prompt is kept, on average."""
RUNTIME = 0.55e9  # torch, transformers and ourselves
SMALL_THINGS = 0.05e9
# How many tensors of their kind are alive at the worst moment, measured: benchmarks/memory.py
SWAP_TENSORS, ENTRY_TENSORS, HEAD_TENSORS = 20, 3, 12
UNEQUAL_TENSORS = 8
"""Of swaps, where blocks differ in length and there are no centred scores."""
FUSED_TENSORS = 4
"""The same of heads whose logits stay in registers: keys and the query as seen from everywhere."""


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
    seconds: float = 0.0
    """Everything, nulls included."""
    speed: Speed = SPEEDS["cpu"]
    """What was assumed: the device, and on a GPU the form of the scores."""

    @property
    def fits(self) -> bool:
        """Whether what is still to be taken is free."""
        return self.free_gigabytes is None or self.more_gigabytes <= self.free_gigabytes

    @property
    def cost(self) -> Cost:
        """As the one rule for what is too much wants it."""
        what = f"a profile of {self.prompts:,} prompts of up to {self.tokens:,} tokens"
        return Cost(
            what,
            self.more_gigabytes,
            self.seconds,
            "use fewer or shorter prompts, larger blocks or a smaller model",
        )

    def __str__(self) -> str:
        text = (
            f"{self.prompts} prompts of up to {self.tokens} tokens, about {self.gigabytes:.1f} GB of memory and "
            f"{how_long(self.seconds)} on {self.speed.words}"
        )
        if not self.fits:
            text += (
                f", {self.more_gigabytes:.1f} GB more than now, and {self.free_gigabytes:.1f} GB are free: "
                "it may not fit; use fewer or larger blocks, shorter prompts or a smaller model"
            )
        if self.plane_logits:
            seconds = self.plane_logits * self.speed.plane_logit
            text += f"; single frequencies: {self.plane_logits / 1e6:.0f} million logits a prompt, roughly {seconds:.2g} s each"
        return text


def most_tokens(subject: Subject, settings: ProfileSettings | DepthsSettings) -> int:
    """How many tokens run through the model together."""
    return settings.batch_tokens or BATCH_TOKENS.get(subject.device.type, BATCH_TOKENS["cpu"])


def estimate(
    subject: Subject, prompts: Prompts, settings: ProfileSettings, *, count: int | None = None
) -> Estimate:
    """Memory and time before the work starts: the weights, those of a random null, the largest batch's worst moment, and
    the tables. `count` says how many prompts there will be where those given stand for more.

    A random null is a second model: made in float32, turned into the subject's own kind of number, read on a few batches to
    rescale it, and then on all.
    """
    count = len(prompts) if count is None else count
    config = subject.model.config.get_text_config()
    parameters, spread = list(subject.model.parameters()), placed_by(subject.model) is not None
    weights = sum(p.numel() * p.element_size() for p in parameters if not (spread and p.is_meta))
    there = sum(p.numel() * p.element_size() for p in parameters if p.device == subject.device)
    work = batches(prompts, settings.positions, most_tokens(subject, settings))
    passes = 1 + (settings.null_draws if settings.null != "none" else 0)
    layers = size_of(config, "num_hidden_layers")
    rows = passes * len(settings.tau) * layers * _heads(config) * len(work[0].queries) * count
    speed = speed_on(subject.device)
    together = max(1, min(count, most_tokens(subject, settings) // work[0].length))
    worst = max(_batch_bytes(subject.model, batch, speed) for batch in work)
    drawn = 0.0
    if settings.null == "random":
        numbers = sum(p.numel() for p in parameters)
        calibrated = min(count, CALIBRATION_BATCHES * together)
        keys = calibrated * _key_bytes(config, work[0].length)
        whole = 0.0 if spread else 4.0 * numbers  # a spread one is drawn elsewhere: `check_null`
        worst = max(whole, there + worst + min(MOST_KEPT, keys))
        once = forward_seconds(subject.model, work[0].length, subject.device, together)
        drawn = numbers * speed.weight + (calibrated * once if keys > MOST_KEPT else 0.0)
    if settings.frequencies:
        worst += speed.plane_bytes
    more = SMALL_THINGS + worst + BYTES_PER_ROW * rows
    free = free_memory(subject.device)
    planes = 0.0
    if settings.frequencies:
        n, heads = prompts.longest, _heads(config)
        swapped = max((len(p.blocks) if p.blocks is not None else n) for p in prompts)
        chosen = settings.single_heads
        scored = heads * layers if chosen is None else len(chosen)
        planes = float(scored * (_width(config) // 2) * n * swapped)
    again = passes * known.COUNT if settings.known else 0
    share = passes * count + again
    seconds = (_seconds(subject, work[0], settings, together) + planes * speed.plane_logit) * share
    seconds += settings.null_draws * drawn + count * ends_cost(subject, prompts[0], settings.input_swaps)
    return Estimate(
        count,
        prompts.longest,
        (RUNTIME + weights + more) / 1e9,
        planes,
        more / 1e9,
        None if free is None else free / 1e9,
        seconds,
        speed,
    )


def ends_cost(subject: Subject, prompt: Prompt, swaps: int) -> float:
    """Seconds that running the end of a prompt takes for so many of its swaps, through all layers."""
    passes = END * min(swaps, swaps_of(prompt))
    return passes * forward_seconds(subject.model, len(prompt.tokens), subject.device)


def swaps_of(prompt: Prompt) -> int:
    """How many swaps a prompt has."""
    blocks = len(prompt.blocks) if prompt.blocks is not None else len(prompt.tokens) - 1
    return blocks * (blocks - 1) // 2


def check_prompts(
    subject: Subject,
    sizes: PromptSettings,
    settings: ProfileSettings,
    *,
    given: Collection[str] = (),
    force: bool,
) -> None:
    """Refuse too many prompts before they are made: one of them stands for all."""
    one = make_prompts(subject, replace(sizes, prompts=1), given=given)
    count = sizes.prompts if one.task in DRAWN else 1
    estimate(subject, one, settings, count=count).cost.check(subject.device, force=force)


def _seconds(subject: Subject, batch: Batch, settings: ProfileSettings, together: int) -> float:
    """One prompt once, of a batch of so many: through the model, and all its swaps."""
    config, n, speed = subject.model.config.get_text_config(), batch.length, speed_on(subject.device)
    blocks = batch.blocks_for(batch.queries[-1])
    entries = len(blocks) * n if max(blocks.lengths) > 1 else 0
    swaps = len(blocks) ** 2 * (1 + 0.15 * (len(settings.tau) - 1))
    head = speed.swap * swaps + speed.entry * entries + speed.row
    layer = _heads(config) * head + speed.scored_layer / together
    layers = size_of(config, "num_hidden_layers") * len(batch.queries)
    return forward_seconds(subject.model, n, subject.device, together) + layers * layer


def _batch_bytes(model: Any, batch: Batch, speed: Speed) -> float:
    """One layer at its worst moment: its feed-forward part, or the scoring of its heads, which come one after the other."""
    config, n = model.config.get_text_config(), batch.length
    blocks = batch.blocks_for(batch.queries[-1])
    hidden, window = size_of(config, "hidden_size"), getattr(config, "sliding_window", None)
    layer = Layer(
        _heads(config), _width(config), hidden, size_of(config, "intermediate_size", 4 * hidden),
        next(model.parameters()).dtype.itemsize,
    )  # fmt: skip
    mask = min(n * n, CHUNK_ROOM / 4) if window else 0  # one for all prompts and heads, or that of a chunk
    logits = size_of(config, "vocab_size") * max(1, len(batch.asked_at))
    worst = layer.most_bytes(
        len(batch), n, len(blocks), max(blocks.lengths), speed, equal=blocks.equal_length, whole=not window
    )
    return worst + 4.0 * (len(batch) * logits + mask)


@dataclass(frozen=True)
class Layer:
    """The sizes of a layer that its memory follows from."""

    heads: int
    head_width: int
    width: int
    wide: int
    """Of the feed-forward part."""
    item: int
    """Bytes of a weight."""

    def most_bytes(
        self,
        prompts: int,
        tokens: int,
        blocks: int,
        longest: int,
        speed: Speed,
        *,
        equal: bool = True,
        whole: bool = True,
    ) -> float:
        """Its feed-forward part, or the scoring of its heads, whichever is more: they come one after the other.

        `longest` is the length of a block in tokens, `equal` whether all have it, `whole` whether all positions are seen.
        """
        forward = self.item * tokens * (3 * self.wide + 8 * self.width)
        swaps, entries = min(blocks, TILE) * blocks, longest * min(blocks, TILE) * blocks
        shared, held = 0.0, float(FUSED_TENSORS * tokens * self.head_width)
        if speed.holds_logits:
            held = HEAD_TENSORS * tokens * self.head_width
            kept = SWAP_TENSORS if equal else UNEQUAL_TENSORS
            logits_held = kept * swaps + (ENTRY_TENSORS * entries if longest > 1 else 0)
            if speed.few_heads and equal and whole:
                shared = logits_held * max(1.0, ROOM / entries)
            else:
                held += logits_held
        return max(prompts * forward, 4.0 * (prompts * self.heads * held + shared))


def _key_bytes(config: object, n: int) -> float:
    """The keys of all layers on one prompt."""
    wide = int(getattr(config, "num_key_value_heads", None) or _heads(config)) * _width(config)
    return 4.0 * size_of(config, "num_hidden_layers") * n * wide


def _heads(config: object) -> int:
    return size_of(config, "num_attention_heads")


def _width(config: object) -> int:
    """Dimensions of a head."""
    return size_of(config, "head_dim", size_of(config, "hidden_size") // _heads(config))
