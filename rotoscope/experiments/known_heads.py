"""Heads people know, beside their classes: which head is of which kind, and does a class have more of them than chance?

A head is *of a kind* when its score is at least `LEAST` and larger than that of any head of any draw of the null. For shares of
attention 0.3 is ten times what uniform attention would put on one of thirty positions; for copying it is 0.1, the limit that
Wu et al. 2024 draw for retrieval heads.

The table class by kind is judged against shuffled classes: depth alone makes classes and kinds meet, so classes are
shuffled within layers. Each shuffle is one draw for the one rule of `rotoscope.stats.verdict`, all cells of the table are a
family, and a figure is the share of a kind's heads that are of a class. As kinds are told by a null as well, nothing is beyond
chance with fewer than 19 draws of each null.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from rotoscope.errors import RotoscopeError, TaskError
from rotoscope.lab.checkpoints import own_task
from rotoscope.measures.batches import Batch, batches
from rotoscope.measures.scoring import Transform
from rotoscope.models.devices import check_memory, logit_bytes
from rotoscope.models.layer import LayerReading
from rotoscope.models.loading import Subject, load
from rotoscope.models.reader import HeadReader
from rotoscope.progress import Progress, progress_bar
from rotoscope.scores.attention import KNOWN, LOOKED_AT, copied, most_attended_in, share_on, targets
from rotoscope.scores.classes import CLASSES
from rotoscope.shapes import Bool, Tensor
from rotoscope.stats.intervals import INTERVAL, mean_interval
from rotoscope.stats.verdict import BEYOND, ENOUGH_DRAWS, NO_VERDICT, UNDECIDED, Figure, Verdict, verdicts
from rotoscope.tasks.multihop_frames import MultiHops
from rotoscope.tasks.prompt import Prompt, Prompts, encode, from_tokens, tokenizer_of
from rotoscope.tasks.repeats import repeats
from rotoscope.tasks.text import passages

PLACE = ["layer", "head"]
LEAST = dict.fromkeys(KNOWN, 0.3) | {"copying": 0.1}
"""The least score with which a head is of a kind."""
SHUFFLES = 999
"""How often classes are dealt anew within layers."""
STRONGEST = 3
"""How many heads of a kind an overview names."""


def head_scores(parts: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """One row per (layer, head): means over the prompts of all parts, and their 95 % intervals."""
    prompts = pd.concat(dict(enumerate(part.set_index(["prompt", *PLACE]) for part in parts)), names=["part"])
    heads = prompts.groupby(PLACE, sort=True)[list(KNOWN)].mean()
    for name in KNOWN:
        wide = prompts[name].unstack(PLACE).sort_index(axis=1).to_numpy(dtype=float)
        heads[f"{name}_low"], heads[f"{name}_high"] = mean_interval(wide, (0.0, 1.0))
    return heads.reset_index()


def known_types(scores: pd.DataFrame, nulls: pd.DataFrame) -> pd.DataFrame:
    """Of which kinds every head is: one column of truths per kind beside layer and head."""
    beyond = {name: float(nulls[name].max()) if len(nulls) else np.nan for name in KNOWN}
    return scores[PLACE].assign(
        **{name: (scores[name] >= LEAST[name]) & ~(scores[name] <= beyond[name]) for name in KNOWN}
    )


def known_table(heads: pd.DataFrame, scores: pd.DataFrame, nulls: pd.DataFrame) -> pd.DataFrame:
    """One row per kind and class: how many heads, how many with classes shuffled within layers, and the verdict.

    `heads` has layer, head and head_class, `scores` those of `head_scores`, `nulls` the scores of all draws of the null.
    """
    joined = heads.merge(known_types(scores, nulls), on=PLACE).dropna(subset=["head_class"])
    present = [name for name in CLASSES if (joined["head_class"] == name).any()]
    dealt = _dealt_classes(joined["layer"].to_numpy(), joined["head_class"].to_numpy())
    rows, figures = [], []
    for kind in KNOWN:
        of_kind = joined[kind].to_numpy(dtype=bool)
        for name in present if scores[kind].notna().any() else ():
            of_class = joined["head_class"] == name
            counts = ((dealt == name) & of_kind).sum(1)
            expected = float((of_class.groupby(joined["layer"]).transform("mean") * of_kind).sum())
            heads_of_both = int((of_class & of_kind).sum())
            low, high = np.quantile(counts, INTERVAL, method="inverted_cdf")
            numbers = {"of_type": int(of_kind.sum()), "heads": heads_of_both}
            about = {"known_type": kind, "head_class": name}
            rows.append(about | numbers | {"expected": expected, "low": low, "high": high})
            of_type = max(int(of_kind.sum()), 1)
            varies = counts.min() < counts.max()
            figures.append(Figure(heads_of_both / of_type, 0.0, (counts / of_type).tolist() if varies else []))
    columns = ["known_type", "head_class", "of_type", "heads", "expected", "low", "high"]
    table = pd.DataFrame(rows, columns=columns)
    judged = verdicts(figures)
    table["p_value"] = [verdict.p_value if len(nulls) else np.nan for verdict in judged]
    answers = [_answer(row, verdict, _fewest_draws(nulls)) for row, verdict in zip(rows, judged, strict=True)]
    table[["verdict", "reason"]] = answers or np.empty((0, 2), dtype=object)
    return table


def _dealt_classes(layers: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The classes dealt anew to the heads of every layer [shuffles, heads]."""
    dice, dealt = np.random.default_rng(0), np.tile(classes, (SHUFFLES, 1))
    for layer in np.unique(layers):
        dealt[:, layers == layer] = dice.permuted(dealt[:, layers == layer], axis=1)
    return dealt


def _fewest_draws(nulls: pd.DataFrame) -> int:
    """How often the null was drawn that was drawn least."""
    return int(nulls.groupby("null_name")["draw"].nunique().min()) if len(nulls) else 0


def _answer(row: dict[str, Any], verdict: Verdict, draws: int) -> tuple[str, str]:
    """The verdict on a class and a kind, and the reason where there is none."""
    if not draws:
        return NO_VERDICT, "no null: a random model might score as much"
    if not row["of_type"]:
        return NO_VERDICT, "no head of this kind"
    if verdict.verdict == NO_VERDICT:
        return NO_VERDICT, "every shuffle gives the same"
    if verdict.verdict == BEYOND and draws < ENOUGH_DRAWS:
        plural = "s" * (draws != 1)
        return UNDECIDED, f"{draws} draw{plural} of the null: a verdict of {BEYOND} takes {ENOUGH_DRAWS}"
    return verdict.verdict, verdict.reason


def known_overview(heads: pd.DataFrame, scores: pd.DataFrame, nulls: pd.DataFrame) -> pd.DataFrame:
    """The table to look at: one row per kind, its heads by class beside what shuffled classes give, and the strongest."""
    cells = known_table(heads, scores, nulls)
    joined = (
        heads[[*PLACE, "head_class"]]
        .merge(scores, on=PLACE)
        .merge(known_types(scores, nulls), on=PLACE, suffixes=("", "_type"))
    )
    rows = []
    for kind, of_kind in cells.groupby("known_type", sort=False):
        row = {"known_type": kind, "heads": int(of_kind["of_type"].iloc[0])}
        for cell in of_kind.to_dict("records"):
            mark = "*" if cell["verdict"] == BEYOND else ""
            row[cell["head_class"]] = f"{cell['heads']}{mark} ({cell['expected']:.1f})" if row["heads"] else "0"
        best = joined[joined[f"{kind}_type"]].nlargest(STRONGEST, kind)
        named = zip(best["layer"], best["head"], best[kind], best["head_class"], strict=True)
        row["strongest"] = ", ".join(f"{layer}:{head} {score:.2f} {name}" for layer, head, score, name in named)
        rows.append(row)
    return pd.DataFrame(rows)


# Heads people already know: previous-token, duplicate-token, induction, copying, delimiter and sink scores of every head.
#
# One forward pass per prompt, all query positions at once, one layer after the other. The attention is the model's own as the
# reader rebuilds it, windows, soft-caps and learned sinks included. What is hidden behind a window gets no attention and counts
# as nought: the score says what a head does, not what it would do.


LENGTH, COUNT = 32, 16
"""Random tokens before they repeat, and how many such prompts."""
MOST_TOKENS = 512
"""Tokens that run through the model together."""
MOST_WEIGHTS = 2**24
"""Attention weights of a layer that are held at once."""


def known_heads(
    subject: Any,
    prompts: Prompts | MultiHops | None = None,
    text: str | Sequence[str] | None = None,
    *,
    tokens: Any = None,
    seed: int = 0,
    show_progress: bool | None = None,
) -> pd.DataFrame:
    """How much every head is of a kind people know: one row per (layer, head), to be joined with `profile.heads`.

    Means over prompts with their 95 % intervals (`..._low`, `..._high`) of six scores. A query is every position; targets are
    earlier positions but the first, which counts for the sink alone.

    - `previous_token`: attention on the token before;
    - `duplicate_token`: attention on earlier occurrences of the query's own token;
    - `induction`: attention on the tokens that follow earlier occurrences of the query's own token;
    - `copying`: of the queries whose token was followed by the same one before, the share at which the head looks most at
      that one and the model says it;
    - `delimiter`: attention on punctuation, line breaks and special tokens;
    - `sink`: attention on the first position.

    A score is the mean over the queries that have such a target, and missing where none has one. Without `prompts`, a `text`
    (or several) or `tokens` [prompts, n], sixteen prompts of 32 random tokens are shown, each written twice, and of plain
    prose the delimiters, where the model has a tokenizer for it.
    """
    if sum(source is not None for source in (prompts, text, tokens)) > 1:
        raise RotoscopeError("give one of: prompts, text, tokens")
    subject = load(subject)
    if prompts is not None:
        shown = [prompts.prompts() if isinstance(prompts, MultiHops) else prompts]
    elif text is not None:
        shown = [_texts(subject, [text] if isinstance(text, str) else list(text))]
    elif tokens is not None:
        shown = [from_tokens(tokens)]
    else:
        shown = usual_prompts(subject, seed)
    check_prompts(shown)
    reader = subject.reader(identity=subject.fingerprint)
    reader.check_predicts("copying heads are told by what the model says")
    longest = max(len(prompt.tokens) for prompts in shown for prompt in prompts)
    size_words = f"one prompt of {longest:,} tokens, all of them queries,"
    check_memory(size_words, prompt_bytes(reader, longest), reader.device, "use shorter prompts")
    with progress_bar("known heads", sum(len(part) for part in shown), show_progress) as bar:
        return scores_of_heads(reader, shown, subject.tokenizer, bar=bar)


def usual_prompts(subject: Subject, seed: int) -> list[Prompts]:
    """Random tokens, twice; and plain prose for a model that reads it."""
    shown = [_random_repeats(subject, seed)]
    if subject.tokenizer is not None and own_task(subject) is None:
        prose = passages(subject, count=6, most_tokens=80)
        special = set(subject.tokenizer.all_special_ids)
        unknown = [token in special for prompt in prose for token in prompt.tokens]
        if 2 * sum(unknown) < len(unknown):  # else the tokenizer has no words for it
            shown.append(prose)
    return shown


def _random_repeats(subject: Subject, seed: int) -> Prompts:
    """Of the tokenizer's words, or of any tokens where there is no tokenizer, as many as fit."""
    config = subject.model.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None) or 2 * LENGTH
    if subject.tokenizer is not None:
        ordinary = len(subject.tokenizer) - len(subject.tokenizer.all_special_ids)
        return repeats(subject, min(LENGTH, longest // 2, ordinary), COUNT, seed)
    size, draw = int(config.vocab_size), random.Random(seed)
    length = min(LENGTH, longest // 2, size)
    rows = [2 * draw.sample(range(size), length) for _ in range(COUNT)]
    return from_tokens(rows)


def _texts(subject: Subject, texts: list[str]) -> Prompts:
    tokenizer = tokenizer_of(subject)
    if not texts or not all(text.strip() for text in texts):
        raise TaskError("an empty text has no tokens to look at")
    items = []
    for text in texts:
        ids = encode(tokenizer, text, start=tokenizer.bos_token_id is not None).ids
        items.append(Prompt(ids, (len(ids) - 1,), text=text))
    return Prompts("text", tuple(items))


def check_prompts(shown: list[Prompts]) -> None:
    """At least three tokens: a query, one to look at, and the first one, which is for the sink alone."""
    if not any(len(part) for part in shown):
        raise RotoscopeError("no prompts were given")
    shortest = min(len(prompt.tokens) for part in shown for prompt in part)
    if shortest < 3:
        raise TaskError(
            f"a prompt of {shortest} token{'s' * (shortest != 1)}: a head needs two tokens before the query to choose between"
        )


def prompt_bytes(reader: HeadReader, tokens: int) -> int:
    """The logits after every token but the last, beside one byte for every pair of tokens and pattern, copying included."""
    return logit_bytes(reader.model, tokens - 1) + (len(LOOKED_AT) + 1) * tokens**2


def scores_of_heads(
    reader: HeadReader,
    shown: list[Prompts],
    tokenizer: Any,
    transform: Transform | None = None,
    bar: Progress | None = None,
) -> pd.DataFrame:
    """The scores of every head over all prompts, which may be of several tasks."""
    parts = []
    for prompts in shown:
        different = {prompt.tokens: prompt for prompt in prompts}.values()  # the same tokens are one sample
        tables = []
        for batch in batches(Prompts(prompts.task, tuple(different)), "last", MOST_TOKENS):
            tables.append(_score(reader, batch, tokenizer, transform))
            if bar is not None:
                bar.advance(len(batch.prompts))
        scored = pd.concat(tables, ignore_index=True)
        if prompts.task == "repeats":  # what stands there by chance delimits nothing
            scored["delimiter"] = np.nan
        if prompts.task == "passages":
            scored[[name for name in KNOWN if name != "delimiter"]] = np.nan
        parts.append(scored)
    return head_scores(parts)


def _score(reader: HeadReader, batch: Batch, tokenizer: Any, transform: Transform | None) -> pd.DataFrame:
    tokens = batch.tokens.to(reader.device)
    looked_for = targets(tokens, _delimiters(batch.tokens, tokenizer).to(tokens.device))
    following = copied(tokens, looked_for[LOOKED_AT.index("induction")])
    has_target = torch.cat((looked_for, following[None])).any(-1)  # [patterns and copying, batch, queries]
    shares: list[Tensor] = []
    looks: list[Tensor] = []

    def visit(layer: LayerReading) -> None:
        if transform is not None:
            layer = transform(layer, batch)
        masks = looked_for.to(layer.keys.device), following.to(layer.keys.device)
        parts, looked = [], []
        rows = max(1, MOST_WEIGHTS // (tokens.numel() * layer.query.shape[1:3].numel()))
        for start in range(0, tokens.shape[1], rows):
            part = slice(start, start + rows)
            attention = layer.part(part).attention()
            parts.append(share_on(attention, masks[0][:, :, part]))
            looked.append(most_attended_in(attention, masks[1][:, part]))
        shares.append(torch.stack(parts).sum(0).cpu())
        looks.append(torch.cat(looked, -1).cpu())

    positions = tuple(range(tokens.shape[1]))
    right = reader.read(tokens, positions, visit, keep=positions[:-1]).argmax(-1).cpu() == batch.tokens[:, 1:]
    count = has_target.sum(-1).float().cpu()  # [patterns and copying, batch]
    tables = []
    for layer, (share, looked) in enumerate(zip(shares, looks, strict=True)):
        copies = (looked[:, :, :-1] & right[:, None]).sum(-1)  # [batch, heads]
        scores = torch.cat((share, copies[None])) / count[..., None]  # 0 / 0 is NaN: nothing to look for
        prompt, head = np.indices(scores.shape[1:])
        columns: dict[str, Any] = {
            "prompt": prompt.ravel() + batch.first,
            "layer": layer,
            "head": head.ravel(),
        }
        names = (*LOOKED_AT, "copying")
        named = {name: score.double().numpy().ravel() for name, score in zip(names, scores, strict=True)}
        tables.append(pd.DataFrame(columns | {name: named[name] for name in KNOWN}))
    return pd.concat(tables, ignore_index=True)


def _delimiters(tokens: Tensor, tokenizer: Any) -> Bool[Tensor, "batch n"]:
    """Which tokens are punctuation, line breaks or special."""
    if tokenizer is None:
        return torch.zeros_like(tokens, dtype=torch.bool)
    special = set(tokenizer.all_special_ids)
    kinds = {int(t): t in special or _delimits(tokenizer.decode([t])) for t in tokens.unique().tolist()}
    return torch.tensor([[kinds[t] for t in row] for row in tokens.tolist()])


def _delimits(text: str) -> bool:
    bare = text.strip()
    return all(unicodedata.category(letter).startswith("P") for letter in bare) and (bool(bare) or "\n" in text)
