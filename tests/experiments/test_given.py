"""What people write first in Python: it works, or a sentence says what to write."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import rotoscope as rs
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.profile.settings import CommandSettings, ProfileSettings
from tests.tiny_models import tiny

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
TURNS = [{"role": "user", "content": "what is red"}]


def tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    """A token for every letter."""
    words = ["<pad>", "<s>", "</s>", "?", *map(chr, range(97, 123)), " ", ".", ":", "\n"]
    raw = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="?"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="?"
    )
    made.chat_template = template
    return made


MODEL, TOKENIZER = tiny("llama"), tokenizer()
PROFILE = rs.profile(MODEL, tokens=[[3, 4, 5, 6, 7, 8]], examples=False)


def scored(*given: Any, **options: Any) -> rs.Profile:
    return rs.profile(*given, examples=False, show_progress=False, **options)


def blocks(profile: rs.Profile) -> Any:
    return profile.run.settings["task_settings"]["blocks"]


def test_a_text_is_cut_into_tokens_unless_other_blocks_are_named() -> None:
    for text in ("some text", "one is here. two is there. three. four."):
        assert blocks(scored(MODEL, text, tokenizer=TOKENIZER)) == "token"
    assert blocks(scored(MODEL, text, tokenizer=TOKENIZER, blocks="sentence")) == "sentence"


def test_the_shortest_text_is_swapped_with_the_start_token() -> None:
    [prompt] = rs.tasks.text((MODEL, TOKENIZER), "ab", "token")
    assert (prompt.blocks.spans, prompt.queries) == (((0, 1), (1, 2)), (2,))
    [longer] = rs.tasks.text(TOKENIZER, "abc", "token")
    assert longer.blocks.spans == ((1, 2), (2, 3))


@pytest.mark.parametrize(
    "holder",
    [
        lambda: (MODEL, TOKENIZER),
        lambda: [MODEL, TOKENIZER],
        lambda: (rs.load(MODEL), TOKENIZER),
        lambda: (rs.load((MODEL, tokenizer(TEMPLATE))), TOKENIZER),
    ],
)
def test_a_model_with_its_tokenizer(holder: Callable[[], Any]) -> None:
    pair = holder()
    assert rs.load(pair).tokenizer is TOKENIZER
    expected = scored(MODEL, "some text", tokenizer=TOKENIZER).prompts
    assert scored(pair, "some text").prompts.equals(expected)
    assert scored(pair[0], "some text", tokenizer=TOKENIZER).prompts.equals(expected)


def test_what_a_tokenizer_returns_is_taken_for_tokens() -> None:
    texts = ["some text here", "more text hier"]
    encoded = TOKENIZER(texts, return_tensors="pt")
    expected = scored(MODEL, tokens=encoded.input_ids).prompts
    for given in (encoded, dict(encoded), TOKENIZER(texts)):
        assert scored(MODEL, given).prompts.equals(expected)
    assert len(scored(MODEL, TOKENIZER(texts[0])).prompts) == len(expected) / 2


def test_a_chat_goes_through_the_template() -> None:
    pair = (MODEL, tokenizer(TEMPLATE))
    one, two = scored(pair, TURNS), scored(pair, [TURNS, TURNS])
    assert (one.run.settings["prompts"], two.run.settings["prompts"]) == (1, 2)
    [prompt] = rs.tasks.text(TOKENIZER, "user: what is red\na:", "token")
    assert one.shown_prompt if "shown_prompt" in one.tables else True
    assert one.run.settings["task_settings"]["prefix"] == "chat"
    assert len(prompt.tokens) - 1 == len(
        pair[1].apply_chat_template(TURNS, add_generation_prompt=True).input_ids
    )


def test_a_head_by_every_way_to_write_it() -> None:
    expected = PROFILE.head(2, 0)
    for name in ("2:0", "L2H0", "l2h0", "2.0", (2, 0)):
        assert PROFILE.head(name).equals(expected)
        assert PROFILE[name].equals(expected)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "three values": (lambda: scored((MODEL, TOKENIZER, 1), "x"), "a pair .model, tokenizer., found 3"),
    "a tokenizer's name": (lambda: scored(MODEL, "x", tokenizer="gpt2"), r"from_pretrained\(.gpt2.\)"),
    "no tokenizer": (lambda: scored((MODEL, 5), "x"), "a tokenizer of transformers is expected, found a int"),
    "a word": (lambda: scored(MODEL, "a", tokenizer=TOKENIZER), "a text of 2 tokens: a swap needs two"),
    "padded": (lambda: scored(MODEL, TOKENIZER(["ab c", "abc de"], padding=True)), "padded to one length"),
    "rows": (lambda: scored(MODEL, TOKENIZER(["ab c", "abc de"])), "rows of one length"),
    "a dictionary": (lambda: scored(MODEL, {"text": "x"}), "has 'input_ids', found 'text'"),
    "no template": (lambda: scored((MODEL, TOKENIZER), TURNS), "no chat template; give the text itself"),
    "a chat without tokenizer": (lambda: scored(MODEL, TURNS), "has no tokenizer"),
    "less than none": (lambda: PROFILE.top("symbolic", -1), "count must be at least 0"),
    "a layer": (lambda: PROFILE.head(2), "'2': heads are written layer:head"),
    "no head": (lambda: PROFILE["first"], "'first': heads are written layer:head"),
    "number": (lambda: rs.tasks.number(rs.load(MODEL), count=8), r"needs no model.*rs\.tasks\.number\(count=16\)"),
    "letter": (lambda: rs.tasks.letter(MODEL), r"rs\.tasks\.questions\(subject, task=.letter.\)"),
    "a temperature": (lambda: scored(MODEL, tokens=[[3, 4, 5, 6]], tau=["warm"]), "tau must be a number"),
    "prompts": (lambda: scored(MODEL, list(rs.tasks.from_tokens([[3, 4, 5, 6]]))), "tokens must be whole numbers"),
    "a bare model": (lambda: rs.tasks.binding(MODEL), "a LlamaForCausalLM has no tokenizer"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_sentence_says_what_to_write(name: str) -> None:
    call, words = REFUSED[name]
    with pytest.raises(RotoscopeError, match=words):
        call()


UNCHECKED = """
import rotoscope as rs
from tests.experiments.test_given import MODEL, PROFILE, TOKENIZER
for call in (
    lambda: rs.profile(MODEL, tokens=[[3, 4, 5, 6]], out=3),
    lambda: PROFILE.top("symbolic", "5"),
    lambda: PROFILE.top("symbolic", 2.5),
    lambda: rs.tasks.text(TOKENIZER, 5),
):
    try:
        call()
    except rs.RotoscopeError as problem:
        print(problem)
"""


@pytest.mark.slow
def test_values_of_another_kind() -> None:
    """In a process where calls are not checked, as they are for users."""
    ended = subprocess.run([sys.executable, "-c", UNCHECKED], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == [
        "out must be a path, found 3",
        "count must be a whole number, found '5'",
        "count must be a whole number, found 2.5",
        "a text is expected, found 5",
    ]


def test_temperatures_as_text_in_a_list() -> None:
    assert scored(MODEL, tokens=[[3, 4, 5, 6]], tau=["1e-4"]).taus == [1e-4]


def test_draws_leave_the_null_as_it_is_and_name_one_where_there_is_none() -> None:
    assert CommandSettings.make(null_draws=20).null == "both"
    assert CommandSettings.make(null="gaussian", null_draws=20).null == "gaussian"
    assert ProfileSettings.make(null_draws=20).null == "random"
    assert ProfileSettings.make(ProfileSettings(null="gaussian"), null_draws=20).null == "gaussian"
