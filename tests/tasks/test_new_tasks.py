"""Tasks that small models can do: what stands in a prompt, what is swapped, what chance is."""

from __future__ import annotations

import itertools
import re

import pytest

import rotoscope as rs
from rotoscope.errors import RotoscopeError, TaskError
from rotoscope.experiments.prompt_settings import PromptSettings
from rotoscope.experiments.prompts import make_prompts
from rotoscope.tasks.lists import lines_for
from rotoscope.tasks.prompt import THROWAWAY
from tests.models.test_load import word_tokenizer
from tests.tasks.test_tasks import words
from tests.tiny_models import tiny

ASKED_BEFORE = [15, 8, 8, 12, 11, 10]
"""Lines of the later copy that the first prompts of seed 0 asked for before there was a choice."""


def answer(subject: rs.Subject, prompt: rs.Prompt) -> str:
    return subject.tokenizer.decode([prompt.answers[0]])


@pytest.mark.parametrize(("pairs", "beyond", "after"), [(8, 20, 4), (14, 32, 0), (14, 32, 30)])
def test_lookup_asks_for_what_stands_nowhere_near(
    stand_in: rs.Subject, pairs: int, beyond: int, after: int
) -> None:
    prompts = rs.tasks.lookup(stand_in, pairs, 24, beyond=beyond, after=after)
    asked = set()
    for prompt in prompts:
        [query], [expected] = prompt.queries, prompt.answers
        places = [place for place, token in enumerate(prompt.tokens) if token == expected]
        assert len(places) >= 2  # in both copies
        assert all(place >= after and query - place >= beyond for place in places)
        spans = [
            prompt.blocks.spans[k]
            for k, line in enumerate(prompt.symbols)
            if line == prompt.symbols[prompt.asked]
        ]
        assert [any(start <= place < stop for place in places) for start, stop in spans] == [True, True]
        asked.add(prompt.asked)
    assert len(asked) > 2  # the place in the copy does not give it away
    assert (prompts.settings["beyond"], prompts.settings["after"]) == (beyond, after)


def test_lookup_asks_for_any_line_unless_told_otherwise(stand_in: rs.Subject) -> None:
    prompts = rs.tasks.lookup(stand_in, 8, 24)
    near = [prompt.answers[0] in prompt.tokens[-20:] for prompt in prompts]
    assert 0 < sum(near) < 24
    assert "beyond" not in prompts.settings
    assert [prompt.asked for prompt in rs.tasks.lookup(stand_in, 8, 6)] == ASKED_BEFORE
    with pytest.raises(
        TaskError, match="the colours of 4 lines all stand among the last 40 tokens of a prompt or the first 2"
    ):
        rs.tasks.lookup(stand_in, 4, 1, beyond=40, after=2)


def test_lines_for_so_many_tokens(stand_in: rs.Subject) -> None:
    for tokens in (64, 300):
        pairs = lines_for(stand_in, tokens)
        spans = rs.tasks.lookup(stand_in, pairs, 1)[0].blocks.spans
        assert spans[-1][1] - spans[pairs][0] == pytest.approx(tokens, rel=0.15)
    assert lines_for(stand_in, 10_000) == 110  # the colours that SmolLM2's tokenizer tells apart
    rs.tasks.lookup(stand_in, 110, 1)


def test_lookup_gives_every_line_twice(stand_in: rs.Subject) -> None:
    prompts = rs.tasks.lookup(stand_in, pairs=5, count=3, seed=1)
    assert prompts.chance == 1 / 5
    two = (words(stand_in, prompt) for prompt in rs.tasks.lookup(stand_in, 2, 8))
    assert all(lines[:2] == [lines[3], lines[2]] for lines in two)  # never in the same order again
    for prompt in prompts:
        lines = [line.strip() for line in words(stand_in, prompt)]
        assert sorted(lines[:5]) == sorted(lines[5:])
        assert lines[:5] != lines[5:]
        assert len({line.split(": ")[1] for line in lines}) == len({line.split(": ")[0] for line in lines}) == 5
        held = lines[prompt.asked]
        assert prompt.asked >= 5
        assert prompt.text.endswith(f"\n{held.split(': ')[0]}:")
        assert f" {held.split(': ')[1]}".startswith(answer(stand_in, prompt))
        same = [k for k, symbol in enumerate(prompt.symbols) if symbol == prompt.symbols[prompt.asked]]
        assert [lines[k] for k in same] == [held, held]


def test_recall_asks_for_the_next_word(stand_in: rs.Subject) -> None:
    prompts = rs.tasks.recall(stand_in, length=5, count=6)
    assert prompts.chance == 1 / 5
    for prompt in prompts:
        listed = [word.strip(" ,") for word in words(stand_in, prompt)]
        begun = len(listed) - 10 + 1
        assert listed[:5] == listed[5:10]
        assert len(set(listed)) == 5
        assert listed[10:] == listed[: begun - 1]  # the last word that is given belongs to the query
        assert prompt.text.endswith(f" {listed[begun - 1]},")
        assert answer(stand_in, prompt) == f" {listed[begun]}"
        assert prompt.asked == 5 + begun
        assert prompt.symbols == tuple(listed.index(word) for word in listed)
    assert len({len(prompt.blocks) for prompt in prompts}) > 1  # the third copy ends anywhere


def test_any_member_of_a_group_is_asked_for(stand_in: rs.Subject) -> None:
    endings = {
        "name": " The {1} in the {2} was put there by",
        "thing": " In the {2}, {0} put the",
        "place": " {0} put the {1} in the",
    }
    shown = []
    for number, (asked, ending) in enumerate(endings.items()):
        wanted = PromptSettings(task="groups", asked=asked, pairs=5, prompts=2)
        prompts = make_prompts(stand_in, wanted, given=("asked", "pairs"))
        assert prompts.chance == 1 / 5
        for prompt in prompts:
            facts = [
                re.fullmatch(r" (.+) put the (.+) in the (.+)\.", fact).groups()
                for fact in words(stand_in, prompt)
            ]
            assert all(len(set(kind)) == 5 for kind in zip(*facts, strict=True))
            held = facts[prompt.asked]
            assert prompt.text.endswith("." + ending.format(*held))
            assert f" {held[number]}".startswith(answer(stand_in, prompt))
        shown.append([words(stand_in, prompt) for prompt in prompts])
    assert shown[0] == shown[1] == shown[2]  # the same facts, whoever is asked for
    with pytest.raises(RotoscopeError, match="^asked means something for groups only"):
        make_prompts(stand_in, PromptSettings(task="lookup"), given=("asked",))


def test_repeats_swap_the_second_copy_too(stand_in: rs.Subject) -> None:
    both, first = (rs.tasks.repeats(stand_in, 6, 1, blocks=blocks)[0] for blocks in ("all", "first"))
    assert (both.tokens, both.asked) == (first.tokens, first.asked)
    assert [span[0] for span in first.blocks.spans] == [*range(1, 7)]
    assert [span[0] for span in both.blocks.spans] == [*range(1, 11)]  # up to the query at 11
    assert both.symbols[6:] == both.symbols[:4]
    [bare] = rs.tasks.repeats(range(3, 40), 6, 1)
    assert len(bare.tokens) == 11
    assert set(bare.tokens) <= set(range(3, 40))
    assert bare.tokens[6:] == bare.tokens[:5]
    with pytest.raises(TaskError, match="needs a tokenizer"):
        rs.tasks.repeats(range(3, 40), 6, 1, prefix="start")
    three = rs.tasks.repeats(stand_in, 6, 1, copies=3, block_length=2)[0]
    assert three.blocks.spans[-1] == (15, 17)  # one more would hold the query at 17
    held = three.blocks.spans[three.asked]
    assert held[0] > 6
    assert three.answers[-1] in three.tokens[slice(*held)]
    with pytest.raises(TaskError, match="of all copies or of the first"):
        rs.tasks.repeats(stand_in, 6, 1, blocks="last")


@pytest.mark.parametrize("task", ["number", "letter"])
@pytest.mark.parametrize("prefix", ["chat", "start"])
def test_one_hop_questions_as_prompts(stand_in: rs.Subject, task: str, prefix: str) -> None:
    asked = rs.tasks.one_hop(task, 9, 4, 2)
    for prompt, question in zip(rs.tasks.questions(stand_in, task, 9, 4, 2, prefix=prefix), asked, strict=True):
        items = [item.strip() for item in words(stand_in, prompt)]
        assert tuple(items) == question.sequence
        assert items[prompt.asked] == question.answer
        begun = f" {question.answer[0]}" if task == "letter" else ""
        assert prompt.text.endswith(f"{'Letter' if begun else 'Number'}: {question.query}\nAnswer:{begun}") == (
            prefix == "start"
        )
        assert (begun + answer(stand_in, prompt)).strip() == question.answer
    few = rs.tasks.questions(stand_in, task, 9, 1, 2)
    digits = {item[-1] for item in asked[0].sequence}
    assert few.chance == 1 / len(digits if task == "letter" else set(asked[0].sequence))


def test_distinct_colours(stand_in: rs.Subject) -> None:
    for pairs in (8, 64):  # more than there are common ones
        prompts = rs.tasks.binding(stand_in, pairs, 2, distinct=True)
        assert prompts.chance == 1 / pairs
        for prompt in prompts:
            colours = [fact.strip(" .").split(" likes ")[1] for fact in words(stand_in, prompt)]
            first = {stand_in.tokenizer(f" {colour}").input_ids[0] for colour in colours}
            assert len(first) == pairs
    with pytest.raises(TaskError, match=r"300 different colours .* tells \d+ apart by their first token"):
        rs.tasks.binding(stand_in, 300, 1, distinct=True)
    usual = rs.tasks.binding(stand_in, 32, 4)  # in which colours come again
    assert 1 / 32 < usual.chance < 1 / 8


def test_paired_prompts_differ_in_the_prefix_only(stand_in: rs.Subject) -> None:
    made = {
        task: {prefix: make(stand_in, 4, 3, 5, prefix=prefix) for prefix in ("start", "fact", "none")}
        for task, make in (
            ("binding", rs.tasks.binding),
            ("groups", rs.tasks.groups),
            ("lookup", rs.tasks.lookup),
            ("recall", rs.tasks.recall),
            ("repeats", rs.tasks.repeats),
        )
    }
    for task, sets in made.items():
        for one, other in itertools.combinations(sets, 2):
            for a, b in zip(sets[one], sets[other], strict=True):
                n = len(a.tokens) - a.blocks.spans[0][0]
                assert a.tokens[-n:] == b.tokens[-n:], (task, one, other)
                assert n == len(b.tokens) - b.blocks.spans[0][0]
                assert (a.answers, a.asked, a.symbols) == (b.answers, b.asked, b.symbols)
    chat = rs.tasks.binding(stand_in, 4, 3, 5, prefix="chat")
    for a, b in zip(chat, made["binding"]["fact"], strict=True):
        assert words(stand_in, a) == words(stand_in, b)
        assert a.answers == b.answers
        name = b.text.split()[-2]
        assert a.text.endswith(f"{name} likes")
        assert b.text.startswith(THROWAWAY)
        assert b.text.endswith(f" What does {name} like? {name} likes")


def test_chance_of_the_other_tasks(stand_in: rs.Subject) -> None:
    assert rs.tasks.repeats(stand_in, 8, 1).chance == 1 / 8
    assert rs.tasks.text(stand_in, "A cat. A dog. Then", answer=" cat").chance is None
    for task, ends in ((rs.tasks.number, str.isalpha), (rs.tasks.letter, lambda word: word[-1].isdigit())):
        samples = task(3)
        there = [len({word for word in one.tokens if ends(word)}) for one in samples]
        assert samples.prompts().chance == pytest.approx(sum(1 / n for n in there) / 3)
        assert samples.prompts()[:1].chance == samples.prompts().chance


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: rs.tasks.lookup(s, 1), "at least 2 pairs"),
        (lambda s: rs.tasks.lookup(s, 5000), "5000 pairs need as many names"),
        (lambda s: rs.tasks.lookup(s, 200), "200 different colours"),
        (
            lambda s: rs.tasks.lookup(s, 4, prefix="chat"),
            "unknown prefix 'chat'; choose one of start, fact, none",
        ),
        (lambda s: rs.tasks.groups(s, 1), "at least 2 groups"),
        (lambda s: rs.tasks.groups(s, 4, asked="colour"), "unknown member 'colour'"),
        (lambda s: rs.tasks.groups(s, 300), "300 different"),
        (lambda s: rs.tasks.recall(s, 1), "at least 2 words"),
        (lambda s: rs.tasks.recall(s, 900), "900 different words"),
        (lambda s: rs.tasks.questions(s, "letter", 1), "two items at least"),
        (lambda s: rs.tasks.questions(s, "letter", 4, prefix="fact"), "choose chat, start or none"),
        (lambda s: rs.tasks.binding(s, 4, 1, ending="answer"), "without a chat"),
        (
            lambda s: rs.tasks.repeats(s, 4, 1, prefix="chat"),
            "unknown prefix 'chat'; choose one of start, fact, none",
        ),
    ],
)
def test_bad_input(stand_in: rs.Subject, make, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        make(stand_in)


def test_settings_make_the_prompts_of_every_task(stand_in: rs.Subject) -> None:
    for task, size in {"lookup": "pairs", "recall": "length", "number": "length", "letter": "length"}.items():
        few = PromptSettings(task=task, prompts=2, **{size: 4})
        made = make_prompts(stand_in, few, given=("task", size))
        assert (made.task, len(made), made.settings[size]) == (task, 2, 4)
        usual = make_prompts(stand_in, PromptSettings(task=task, prompts=1))
        assert usual.settings[size] == {"lookup": 8, "recall": 12}.get(task, 16)
    with pytest.raises(RotoscopeError, match="--length means something for recall and repeats"):
        make_prompts(stand_in, PromptSettings(task="lookup"), given=("length",))
    own = rs.load("letter", device="cpu")
    with pytest.raises(TaskError, match="knows only the words of its letter task"):
        make_prompts(own, PromptSettings(task="lookup"))
    with pytest.raises(TaskError, match="cannot be shown the number task"):
        make_prompts(own, PromptSettings(task="number"))
    with pytest.raises(RotoscopeError, match="--length means something for language models only"):
        make_prompts(own, PromptSettings(), given=("length",))
    mute = rs.load(tiny("llama"), name="mute")
    for task in ("lookup", "recall", "letter"):
        with pytest.raises(TaskError, match="mute has no tokenizer"):
            make_prompts(mute, PromptSettings(task=task))
    with pytest.raises(TaskError, match="tells 1 apart"):
        rs.tasks.recall(word_tokenizer())
