from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, normalizers
from transformers import PreTrainedTokenizerFast

import rotoscope as rs
from rotoscope.errors import BlockError, TaskError
from rotoscope.scores.blocks import Blocks
from rotoscope.tasks.prompt import PREFIXES, Encoded, Prompt, first_token, spans_of
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny


def words(subject: rs.Subject, prompt: rs.Prompt) -> list[str]:
    return [subject.tokenizer.decode(prompt.tokens[a:b]) for a, b in prompt.blocks.spans]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_binding_blocks_are_the_facts(smollm2: rs.Subject, prefix: str) -> None:
    prompts = rs.tasks.binding(smollm2, pairs=6, count=3, seed=1, prefix=prefix)
    assert len(prompts) == 3
    for prompt in prompts:
        blocks = words(smollm2, prompt)
        assert len(blocks) == 6
        assert all(block.startswith(" ") and " likes " in block and block.endswith(".") for block in blocks)
        assert prompt.queries == (len(prompt.tokens) - 1,)
        # the asked fact's colour is the answer, and only the asked fact holds the asked name
        asked = blocks[prompt.asked]
        assert asked.endswith(smollm2.tokenizer.decode([prompt.answers[0]]) + ".") or asked.split()[
            -1
        ].startswith(smollm2.tokenizer.decode([prompt.answers[0]]).strip())
        name = asked.split()[0]
        assert prompt.text.rsplit(asked, 1)[1].count(name) >= 1
        first = prompt.blocks.spans[0][0]
        assert (first == 0) == (prefix == "none")
        if prefix == "chat":
            assert prompt.text.endswith(f"{name} likes")
        if prefix in ("start", "fact"):
            assert prompt.tokens[0] == smollm2.tokenizer.bos_token_id


def test_binding_is_deterministic_and_seeds_differ(smollm2: rs.Subject) -> None:
    one, same, other = (rs.tasks.binding(smollm2, 5, 2, seed) for seed in (0, 0, 1))
    assert one == same
    assert one.items != other.items


def test_binding_granularities(smollm2: rs.Subject) -> None:
    def blocks(grain: str | int) -> rs.Prompt:
        return rs.tasks.binding(smollm2, 8, 1, granularity=grain)[0]

    assert len(blocks("symbol").blocks) == 16
    assert words(smollm2, blocks("symbol"))[2 * 3] == words(smollm2, blocks("fact"))[3].rsplit(" likes")[0]
    assert set(blocks("token").blocks.lengths) == {1}
    assert len(blocks("token").blocks) == sum(blocks("fact").blocks.lengths)
    assert len(blocks(3).blocks) == 2  # two groups of three, two facts left over
    assert blocks(2).blocks.spans[0] == (blocks("fact").blocks.spans[0][0], blocks("fact").blocks.spans[1][1])
    with pytest.raises(TaskError, match="granularity"):
        blocks(5)


def test_binding_equal_length(smollm2: rs.Subject) -> None:
    prompts = rs.tasks.binding(smollm2, pairs=200, count=2, equal_length=True)
    assert all(prompt.blocks.equal_length for prompt in prompts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pairs": 1}, "at least 2 pairs"),
        ({"pairs": 5000}, "5000 pairs need as many names"),
        ({"count": 0}, "1 prompt"),
        ({"prefix": "poem"}, "unknown prefix"),
    ],
)
def test_binding_bad_input(smollm2: rs.Subject, arguments: dict, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        rs.tasks.binding(smollm2, **arguments)


def test_prefix_without_a_chat_template() -> None:
    tokenizer = word_tokenizer()
    assert rs.tasks.binding(tokenizer, 3, 1).settings["prefix"] == "fact"
    with pytest.raises(TaskError, match="no chat template"):
        rs.tasks.binding(tokenizer, 3, 1, prefix="chat")
    tokenizer.bos_token = None
    with pytest.raises(TaskError, match="no start token"):
        rs.tasks.binding(tokenizer, 3, 1, prefix="start")


def test_repeats(smollm2: rs.Subject) -> None:
    for prompt in rs.tasks.repeats(smollm2, length=10, count=2, copies=3):
        body = prompt.tokens[1:]
        assert len(body) == 29
        assert body[:10] == body[10:20]
        assert body[20:] == body[:9]
        assert len(set(body[:10])) == 10
        assert all(
            answer == body[(q - 1) % 10 + 1]
            for q, answer in zip(prompt.queries, prompt.answers, strict=True)
            if (q - 1) % 10 < 9
        )
        assert prompt.blocks.spans[0] == (1, 2)
        assert prompt.tokens[prompt.blocks.spans[prompt.asked][0]] == prompt.answers[-1]
    with pytest.raises(TaskError, match="length must lie"):
        rs.tasks.repeats(smollm2, length=2)


TEXT = "The cat sat. The dog ran!\nWho sat? The"


def test_text_cuts(smollm2: rs.Subject) -> None:
    def cut(blocks) -> list[str]:
        return words(smollm2, rs.tasks.text(smollm2, TEXT, blocks)[0])

    assert [block.strip() for block in cut("sentence")] == ["The cat sat.", "The dog ran!", "Who sat?"]
    assert cut(4)[0] == "The cat sat."
    prompt = rs.tasks.text(smollm2, TEXT, "token", answer=" cat")[0]
    assert prompt.answers == (smollm2.tokenizer(" cat").input_ids[0],)
    assert prompt.blocks.spans[0] == (1, 2)  # the start token stays outside
    spans = rs.tasks.text(smollm2, TEXT, [(0, 12), (12, 25)], unit="character")[0]
    assert words(smollm2, spans) == ["The cat sat.", " The dog ran!"]


@pytest.mark.parametrize(
    ("text", "blocks", "error", "message"),
    [
        ("", "sentence", TaskError, "empty text"),
        ("One sentence only, no more", "sentence", BlockError, "0 block"),
        ("A cat. Then", "sentence", BlockError, "1 block"),
        ("A cat. A dog. Then", [(1, 3), (3, 99)], BlockError, "contains the query"),
        ("A cat. A dog. Then", "poem", TaskError, "unknown way"),
        ("A cat. A dog. Then", 0, TaskError, "at least one token"),
    ],
)
def test_text_bad_input(smollm2: rs.Subject, text: str, blocks, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        rs.tasks.text(smollm2, text, blocks)


def test_text_equal_length_on_demand(smollm2: rs.Subject) -> None:
    with pytest.raises(BlockError, match="equal length were demanded"):
        rs.tasks.text(smollm2, "A cat sat there. A dog. Then", equal_length=True)


class Watched(tuple):  # type: ignore[type-arg]
    """Offsets that count how often someone goes through them."""

    looks = 0

    def __iter__(self):
        Watched.looks += 1
        return super().__iter__()


def test_tokens_are_looked_at_once_however_many_pieces_there_are() -> None:
    """A long text has as many sentences as it likes: going through all tokens for each would take minutes."""
    offsets = Watched((k, k + 1) for k in range(100))
    pieces = [(k, k + 10) for k in range(0, 100, 10)]
    Watched.looks = 0
    assert spans_of(Encoded(tuple(range(100)), offsets), pieces) == pieces
    assert Watched.looks <= 2  # once by whoever checks annotations


def test_pieces_hold_the_tokens_that_end_in_them() -> None:
    """Empty tokens belong nowhere, several of one character together, and pieces may come in any order."""
    encoded = Encoded((7, 8, 9, 10, 11), ((0, 0), (0, 3), (3, 4), (3, 4), (4, 9)))
    assert spans_of(encoded, [(4, 9), (0, 4)]) == [(4, 5), (1, 4)]
    with pytest.raises(TaskError, match="no token ends between characters 4 and 8"):
        spans_of(encoded, [(4, 8)])


def test_words_need_a_tokenizer() -> None:
    mute = rs.load(tiny("llama"), name="mute")
    for make in (rs.tasks.repeats, rs.tasks.binding):
        with pytest.raises(TaskError, match=r"mute has no tokenizer, .* rotoscope\.tasks\.from_tokens"):
            make(mute)


def test_a_block_is_asked_that_is_there() -> None:
    blocks = Blocks.of([(0, 2), (2, 4)], 5)
    with pytest.raises(TaskError, match="asked is 2, and the blocks are numbered from 0 to 1"):
        Prompt((1, 2, 3, 4, 5, 6), (5,), blocks=blocks, asked=2)


def test_the_answer_is_the_word_also_for_tokenizers_that_begin_every_text_with_a_space() -> None:
    """As those of Llama 2: of a word by itself they make a space and the word."""
    ids = {"▁": 0, "a": 1, "b": 2, "▁a": 3, "▁b": 4, "?": 5}
    raw = Tokenizer(models.BPE(vocab=ids, merges=[("▁", "a"), ("▁", "b")], unk_token="?"))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw)
    assert tokenizer(" a").input_ids == [0, 3]
    assert [first_token(tokenizer, word) for word in ("a", "b")] == [3, 4]
