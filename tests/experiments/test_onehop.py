from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import rotoscope as rs
from rotoscope.errors import RunError, TaskError
from rotoscope.experiments.ask import run as module
from rotoscope.experiments.ask.run import one_hop_local
from rotoscope.tasks.onehop import OneHopPlan
from tests.tiny_models import tiny

PLAN = OneHopPlan(lengths=(12, 20), runs=2, questions=2)
CHAT = "{% for m in messages %}<{{ m.content }}>{% endfor %}{% if add_generation_prompt %}~{% endif %}"


def byte_tokenizer(chat: bool = False) -> PreTrainedTokenizerFast:
    """One token per byte, so that a candidate of the letter task has two."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({sign: k for k, sign in enumerate([*alphabet, "</s>"])}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>")
    made.chat_template = CHAT if chat else None
    return made


def subject(name: str = "llama", chat: bool = False, **changes: object) -> rs.Subject:
    sizes = {"vocab_size": 257, "max_position_embeddings": 2048, "eos_token_id": 256} | changes
    return rs.load((tiny(name, sharp=2.0, **sizes), byte_tokenizer(chat)), name="tiny")


def by_hand(tested: rs.Subject, text: str, candidates: tuple[str, ...]) -> dict[str, float]:
    """Total log-likelihood of each candidate from a whole forward pass of its own, without a cache."""
    start = len(tested.tokenizer(text).input_ids)
    found = {}
    for candidate in candidates:
        ids = torch.tensor([tested.tokenizer(text + candidate).input_ids])
        likely = tested.model(ids, use_cache=False).logits[0].log_softmax(-1)
        found[candidate] = sum(float(likely[t - 1, ids[0, t]]) for t in range(start, ids.shape[1]))
    return found


@torch.inference_mode()
@pytest.mark.parametrize(
    ("chat", "name"),
    [
        *((False, "gptj"), (True, "llama")),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(True, "gptj"), (False, "llama"), (False, "mistral"), (True, "mistral")]
        ),
    ],
)
def test_scores_are_those_of_whole_forward_passes(
    name: str, chat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 4000)  # several chunks
    tested = subject(name, chat, **({"n_positions": 2048} if name == "gptj" else {}))
    asked, warnings = module._fitting(tested, PLAN, chat, 4)
    assert not warnings
    for task in ("number", "letter"):
        some = [one for one in asked if one.question.task == task]
        front = module._Front(tested, [one.tokens for one in some])
        assert len(front.tokens) > 100
        for one in some[::3]:
            logits, cache = front.read(one.tokens)
            found = module._log_likelihoods(tested, one, logits, cache, chat)
            text = f"<{one.question.text}>~" if chat else one.question.text + " "
            expected = by_hand(tested, text, one.question.candidates)
            if not chat:  # the space belongs to the candidate
                space = by_hand(tested, one.question.text, (" ",))[" "]
                expected = {candidate: value + space for candidate, value in expected.items()}
            assert found == pytest.approx(expected, abs=1e-3)


def test_both_ways_of_scoring(tmp_path: Path) -> None:
    tested = subject(chat=True)
    run = one_hop_local(tested, PLAN, out=tmp_path / "run")
    assert len(run.answers) == 16
    assert run.answers["ranked_correct"].notna().all()
    assert run.run.settings["chat"] is True
    table = run.accuracy().set_index(["task", "scoring", "length"])
    ranked = run.answers.query("task == 'letter' and length == 20")
    assert table.loc[("letter", "restricted", 20), "mean"] == ranked["ranked_correct"].mean()
    assert table.loc[("letter", "free", 20), "mean"] == ranked["correct"].mean()
    assert table.loc[("letter", "free", 20), "chance"] == pytest.approx((1 / ranked["candidates"]).mean())
    pd.testing.assert_frame_equal(rs.open(tmp_path / "run").answers, run.answers)


def test_another_chat_template_is_another_run(tmp_path: Path) -> None:
    tested = subject(chat=True)
    one_hop_local(tested, PLAN, out=tmp_path / "run")
    tested.tokenizer.chat_template = CHAT.replace("~", "?")
    with pytest.raises(RunError, match="tokenizer_hash"):
        one_hop_local(tested, PLAN, out=tmp_path / "run")


def test_greedy_answer_is_the_models_own() -> None:
    """Against transformers' own greedy decoding."""
    tested = subject(chat=True)
    run = one_hop_local(tested, OneHopPlan(lengths=(12,), runs=1, questions=3), answer_tokens=5)
    for row, (_, question) in zip(
        run.answers.sort_values("task", ascending=False, kind="stable").itertuples(),
        OneHopPlan(lengths=(12,), runs=1, questions=3),
        strict=True,
    ):
        ids = torch.tensor([tested.tokenizer(f"<{question.text}>~").input_ids])
        own = tested.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)
        answer = tested.tokenizer.decode(own[0, ids.shape[1] :], skip_special_tokens=True)
        assert (row.task, row.expected) == (question.task, question.answer)
        assert row.answered == module.read_answer(answer)[0]


def test_stopped_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tested = subject()
    whole = one_hop_local(tested, PLAN)
    answer, calls = module._answer, []

    def limited(*args):
        if len(calls) == 11:
            raise KeyboardInterrupt
        calls.append(args)
        return answer(*args)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_answer", limited)
        with pytest.raises(KeyboardInterrupt):
            one_hop_local(tested, PLAN, out=tmp_path / "run")
    rest = []
    with monkeypatch.context() as patch:
        patch.setattr(module, "_answer", lambda *args: rest.append(args) or answer(*args))
        resumed = one_hop_local(tested, PLAN, out=tmp_path / "run")
    assert len(rest) == 5
    pd.testing.assert_frame_equal(resumed.answers, whole.answers)


def test_lengths_beyond_the_context_are_left_out() -> None:
    longest = max(len(question.text) for _, question in PLAN if question.length == 12) + 8
    tested = subject(max_position_embeddings=longest)
    run = one_hop_local(tested, PLAN)
    assert set(run.answers["length"]) == {12}
    assert any("letter task at length 20 was left out" in warning for warning in run.run.warnings)
    with pytest.raises(TaskError, match="no length fits"):
        one_hop_local(subject(max_position_embeddings=64), PLAN)
    with pytest.raises(TaskError, match="no chat template"):
        one_hop_local(tested, PLAN, chat=True)


def test_base_models_answer_with_their_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a template a model goes on with a next example, which is not part of its answer."""
    plan = OneHopPlan(tasks=("number",), lengths=(12,), runs=1, questions=1)
    _, question = next(iter(plan))
    written = byte_tokenizer()(f" {question.answer}\n\nSequence").input_ids
    monkeypatch.setattr(module, "_greedy", lambda *_: written)
    assert one_hop_local(subject(), plan).answers["correct"].all()
    assert set(one_hop_local(subject(chat=True), plan).answers["status"]) == {"not single"}


@pytest.mark.slow
def test_smollm2_answers(smollm2: rs.Subject) -> None:
    run = one_hop_local(smollm2, OneHopPlan(tasks=("letter",), lengths=(12,), runs=1, questions=2))
    assert run.run.settings["chat"] is True
    assert run.answers["prompt_tokens"].between(150, 250).all()
    assert run.answers["ranked_correct"].notna().all()
