"""Groups of three: "Ann put the cup in the drawer", any member asked for (after Gur-Arieh et al., arXiv 2510.06182)."""

from __future__ import annotations

import random
from typing import Any, Literal

from rotoscope.errors import TaskError
from rotoscope.maths.blocks import Blocks
from rotoscope.tasks.prefixes import THROWAWAY, Prefix, chosen_prefix, starts
from rotoscope.tasks.prompts import Prompt, Prompts, encode, spans_of, tokenizer_of
from rotoscope.tasks.vocabulary import first_token, told_apart

MEMBERS = {"name": "names.txt", "thing": "things.txt", "place": "places.txt"}
FACT = " {name} put the {thing} in the {place}."
ASKING = {
    "name": " The {thing} in the {place} was put there by",
    "thing": " In the {place}, {name} put the",
    "place": " {name} put the {thing} in the",
}


def groups(
    subject: Any,
    pairs: int = 16,
    count: int = 16,
    seed: int = 0,
    *,
    asked: Literal["name", "thing", "place"] = "name",
    prefix: Prefix | None = None,
) -> Prompts:
    """`count` prompts of `pairs` facts about a name, a thing and a place; two of them are given, the third is `asked` for.

    No two members of a kind begin with the same token. Every fact is a block. The same seed gives the same facts and the
    same one to ask about, whichever member is asked for. The `prefix` is "start", "fact" (the default) or "none", as
    for `binding`.
    """
    tokenizer = tokenizer_of(subject)
    chosen = chosen_prefix(tokenizer, prefix, plain=True)
    if pairs < 2 or count < 1:
        raise TaskError(f"groups needs at least 2 groups and 1 prompt, found {pairs} groups, {count} prompts")
    if asked not in MEMBERS:
        raise TaskError(f"unknown member '{asked}'; choose one of {', '.join(MEMBERS)}")
    known = {kind: told_apart(tokenizer, pairs, f"{kind}s", file) for kind, file in MEMBERS.items()}
    draw = random.Random(seed)
    items = []
    for _ in range(count):
        drawn = {kind: draw.sample(words, pairs) for kind, words in known.items()}
        facts = [{kind: drawn[kind][k] for kind in MEMBERS} for k in range(pairs)]
        items.append(_prompt(tokenizer, facts, draw.randrange(pairs), asked, chosen))
    settings = {"pairs": pairs, "count": count, "seed": seed, "asked": asked, "prefix": chosen}
    return Prompts("groups", tuple(items), settings, chance=1 / pairs)


def _prompt(tokenizer: Any, facts: list[dict[str, str]], wanted: int, asked: str, prefix: Prefix) -> Prompt:
    text = THROWAWAY if prefix == "fact" else ""
    pieces = []
    for fact in facts:
        said = FACT.format(**fact)
        pieces.append((len(text), len(text) + len(said)))
        text += said
    text += ASKING[asked].format(**facts[wanted])
    encoded = encode(tokenizer, text, start=starts(tokenizer, prefix))
    query = len(encoded.ids) - 1
    return Prompt(
        tokens=encoded.ids,
        queries=(query,),
        answers=(first_token(tokenizer, facts[wanted][asked]),),
        blocks=Blocks.of(spans_of(encoded, pieces), query),
        asked=wanted,
        text=text,
    )
