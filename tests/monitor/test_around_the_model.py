"""Models as trainings hold them: compiled, adapted, in mixed precision, under gradient checkpointing and accumulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch

import rotoscope as rs
from rotoscope.monitor.training_process import model_inside
from tests.monitor.trained import TOKENS, equal, fresh, loop, prompt_tuned, sharded, trainer

WAYS: dict[str, dict[str, Any]] = {
    "accumulation": {"gradient_accumulation_steps": 2},
    "checkpointing": {"gradient_checkpointing": True},
    "bfloat16": {"bf16": True},
    "compiled": {"torch_compile": True, "torch_compile_backend": "eager"},
}


@pytest.mark.parametrize(
    "way", ["accumulation", *(pytest.param(way, marks=pytest.mark.slow) for way in list(WAYS)[1:])]
)
def test_a_trainer_with(way: str, tmp_path: Path) -> None:
    plain, watched = fresh(), fresh()
    trainer(tmp_path, plain, **WAYS[way]).train()
    monitor = rs.HeadMonitor(TOKENS, every=3, out=tmp_path / "run", strict=True)
    trainer(tmp_path, watched, monitor, **WAYS[way]).train()
    assert equal(plain, watched)
    run = rs.open(tmp_path / "run")
    assert run.steps == [0, 3, 6]
    # The weights themselves are scored, whatever training made around them.
    wanted = rs.profile(fresh_with(watched), tokens=TOKENS, null="none", examples=False).at()
    last = run.at()[lambda rows: rows["step"] == 6]
    assert last["symbolic_score"].to_numpy() == pytest.approx(wanted["symbolic_score"].to_numpy(), abs=1e-6)


def fresh_with(model: Any) -> Any:
    """The same weights in a model that no trainer has seen."""
    made = fresh()
    made.load_state_dict(
        {name.removeprefix("_orig_mod."): weight for name, weight in model.state_dict().items()}
    )
    return made


def test_mixed_precision_in_a_loop() -> None:
    monitor = rs.HeadMonitor(TOKENS, every=2, strict=True)
    assert equal(loop(fresh(), monitor, autocast=True), loop(fresh(), autocast=True))


def test_a_model_compiled_in_place_is_read_as_it_was_written() -> None:
    model, ran = fresh(), []

    def backend(graph: Any, inputs: Any) -> Any:
        ran.append(graph)
        return graph.forward

    model.compile(backend=backend)
    numbers = rs.HeadMonitor(TOKENS).step(model, 0)
    assert not ran
    assert model._compiled_call_impl is not None
    assert numbers == rs.HeadMonitor(TOKENS).step(fresh(), 0)


def test_lora_is_read_with_what_it_adds() -> None:
    torch.manual_seed(3)
    adapted = peft.get_peft_model(
        fresh(), peft.LoraConfig(r=4, target_modules=["q_proj", "k_proj"], init_lora_weights=False)
    )
    numbers = rs.HeadMonitor(TOKENS).step(adapted, 0)
    assert numbers != rs.HeadMonitor(TOKENS).step(fresh(), 0)
    merged = adapted.merge_and_unload()
    wanted = rs.HeadMonitor(TOKENS).step(merged, 0)
    assert numbers == pytest.approx(wanted, abs=1e-4)


def test_lora_under_a_trainer_is_the_same_bit_by_bit(tmp_path: Path) -> None:
    made = []
    for callbacks in ((), (rs.HeadMonitor(TOKENS, every=2, strict=True),)):
        model = peft.get_peft_model(fresh(), peft.LoraConfig(r=4, target_modules=["q_proj", "k_proj"]))
        trainer(tmp_path, model, *callbacks).train()
        made.append(model)
    assert equal(*made)


def test_virtual_tokens_are_refused() -> None:
    with pytest.raises(rs.errors.ModelError, match="PROMPT_TUNING puts virtual tokens"):
        rs.HeadMonitor(TOKENS).step(prompt_tuned(fresh()), 0)


def test_what_is_around_a_model_is_taken_off() -> None:
    model = fresh()
    assert model_inside(torch.compile(torch.nn.DataParallel(model), backend="eager")) is model


def test_weights_that_are_spread_over_processes_are_refused() -> None:
    with pytest.raises(rs.errors.ModelError, match="spread over processes"):
        rs.HeadMonitor(TOKENS).step(sharded(fresh()), 0)
