"""Bytes of what a profile must hold: the tensors of one prompt, and its tables. Memory is refused by `models.devices`."""

from __future__ import annotations

from pathlib import Path

from rotoscope.experiments.profile.settings import ProfileSettings
from rotoscope.measures.batches import scored_queries
from rotoscope.models.devices import check_memory, check_tables, logit_bytes
from rotoscope.models.reader import HeadReader
from rotoscope.stats.aggregate import FREQUENCY_MEASURES
from rotoscope.tasks.prompt import Prompt, Prompts

NUMBER = 4
"""Bytes of a score, a float32."""
HEAD_ROW = 20
"""Bytes of a row's prompt, input_id, layer, head and tau."""
PLANE_ROW = HEAD_ROW + 10
"""The same with frequency_id and angle."""
QUERY = 4
"""Bytes of a row's query_position."""
AT_TAU, AT_ANY_TAU = 6, 7
"""Scores that every head has for each tau, and once."""


def check_profile(
    reader: HeadReader, prompts: Prompts, settings: ProfileSettings, out: str | Path | None
) -> None:
    """Raise TooLargeError for a profile of which one prompt, or the tables, cannot fit."""
    check_one_prompt(reader, prompts, settings)
    draws = (settings.null_draws or 0) * len(settings.nulls)
    size_words = f"the tables of a profile of {len(prompts):,} prompts and {draws} draws of the null"
    less = "use fewer prompts (--prompts), draws (--null-draws) or queries"
    check_tables(size_words, (1 + draws) * table_bytes(reader, prompts, settings), out, less)


def check_one_prompt(reader: HeadReader, prompts: Prompts, settings: ProfileSettings) -> None:
    """Raise TooLargeError where the longest prompt cannot be scored even by itself."""
    longest = max(prompts, key=lambda prompt: len(prompt.tokens))
    size_words = f"scoring one prompt of {len(longest.tokens):,} tokens"
    less = "use shorter prompts, fewer queries or a smaller model"
    check_memory(size_words, prompt_bytes(reader, longest, settings), reader.device, less)


def prompt_bytes(reader: HeadReader, prompt: Prompt, settings: ProfileSettings) -> int:
    """The keys of one layer; or all scores beside the logits of the answers: whichever is more."""
    tokens, taus, queries = len(prompt.tokens), len(settings.tau), scored_queries(prompt, settings.positions)
    keys = max(
        count * len(layout.order) for count, layout in zip(reader.key_head_counts, reader.layouts, strict=True)
    )
    scores = sum(reader.head_counts) * len(queries) * (AT_TAU * taus + AT_ANY_TAU)
    scores += _planes(reader, settings) * taus * len(FREQUENCY_MEASURES)
    answers = len(prompt.queries) if any(answer is not None for answer in prompt.answers) else 1
    logits = logit_bytes(reader.model, answers if reader.trims else tokens) if reader.predicts else 0
    return max(NUMBER * keys * tokens, NUMBER * scores + logits)


def table_bytes(reader: HeadReader, prompts: Prompts, settings: ProfileSettings) -> int:
    """The tables per prompt, per query where there are several, and per plane: of the subject, or of one draw of the null."""
    scores = NUMBER * (AT_TAU + AT_ANY_TAU)
    counts = [len(scored_queries(prompt, settings.positions)) for prompt in prompts]
    queries = sum(count for count in counts if count > 1)
    rows = len(prompts) * (HEAD_ROW + scores) + queries * (HEAD_ROW + QUERY + scores)
    plane_rows = len(prompts) * (PLANE_ROW + NUMBER * len(FREQUENCY_MEASURES))
    return len(settings.tau) * (sum(reader.head_counts) * rows + _planes(reader, settings) * plane_rows)


def _planes(reader: HeadReader, settings: ProfileSettings) -> int:
    """Planes that are scored by themselves; what does not rotate counts as one."""
    if not settings.frequencies:
        return 0
    planes = [layout.planes + (layout.remainder > 0) for layout in reader.layouts]
    if settings.single_heads is not None:
        return sum(planes[layer] for layer, _ in settings.single_heads)
    return sum(count * heads for count, heads in zip(planes, reader.head_counts, strict=True))
