"""Stretches of a long text."""

from __future__ import annotations

import pytest

import rotoscope as rs
from rotoscope.errors import TaskError
from tests.models.test_load import word_tokenizer

TEXT = " ".join(f"w{3 + k % 97}" for k in range(97))


def test_stretches_follow_the_text_and_do_not_overlap() -> None:
    tokenizer = word_tokenizer()
    found = rs.tasks.long_text(tokenizer, 11, 9, text=TEXT)
    whole = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    front = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    own = 11 - len(front)
    begins = []
    for prompt in found:
        assert list(prompt.tokens[: len(front)]) == front
        piece = list(prompt.tokens[len(front) :])
        begins.append(next(k for k in range(0, len(whole), own) if whole[k : k + own] == piece))
        assert prompt.queries == tuple(range(10))
        assert prompt.answers == prompt.tokens[1:]
    assert len(set(begins)) == 9


def test_only_the_end_is_asked_for() -> None:
    prompt = rs.tasks.long_text(word_tokenizer(), 12, 1, asked=3, text=TEXT)[0]
    assert prompt.queries == (8, 9, 10)
    assert prompt.answers == prompt.tokens[9:]


def test_another_seed_shows_another_part() -> None:
    made = [rs.tasks.long_text(word_tokenizer(), 8, 2, seed, text=TEXT) for seed in (0, 0, 1)]
    assert made[0].items == made[1].items != made[2].items


def test_the_manual_is_long(smollm2: rs.Subject) -> None:
    found = rs.tasks.long_text(smollm2, 2048, 8)
    assert all(len(prompt.tokens) == 2048 for prompt in found)
    assert found.settings["text"] == "Python's own manual"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"length": 3}, "at least 4 tokens"),
        ({"length": 8, "count": 50}, "50 stretches of 8 were asked for"),
        ({"length": 8, "asked": 8}, "the last 1 to 7"),
    ],
)
def test_what_cannot_be_made_is_refused(how: dict[str, int], words: str) -> None:
    with pytest.raises(TaskError, match=words):
        rs.tasks.long_text(word_tokenizer(), **how, text=TEXT)
