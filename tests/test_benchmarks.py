"""The GPU's benchmarks run, here on a CPU with tiny models; no time is judged."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import rotoscope as rs
from benchmarks import gpu, gpu_study, growth, long_prompts, monitor, plans, sweep, user_waits
from benchmarks.llama import Shape
from tests.test_watched_trainings import EXAMPLES, script
from tests.tiny_models import tiny, tokens

CPU = torch.device("cpu")
TINY = Shape("tiny", 1, 64, 4, 2, 16, 96, vocabulary=64, positions=256)
RATES = gpu.Rates(1e9, 1e9)


@pytest.fixture(scope="module")
def rows() -> list[gpu.Row]:
    """One case that works, one that is too long for the model, and one after it."""
    both = {gpu.HEADS: gpu.Target(1.5, 1.2), gpu.PLANES: gpu.Target(gigabytes=0.5)}
    cases = [
        gpu.Case(2, 64, both),
        gpu.Case(1, 512, {gpu.HEADS: gpu.NONE}),
        gpu.Case(1, 64, {gpu.HEADS: gpu.NONE}),
    ]
    return gpu.score_model(TINY, cases, CPU, RATES)


def test_a_failed_row_says_why_and_the_rest_goes_on(rows: list[gpu.Row]) -> None:
    failed = [row for row in rows if row.error is not None]
    assert [(row.case, row.met) for row in failed] == [("1x512", False)]
    assert "longer than the model's context of 256" in str(failed[0].error)
    assert all(row.ratio is not None and row.ratio > 0 for row in rows if row.error is None)
    assert [row.case for row in rows] == ["2x64", "2x64", "1x512", "1x64"]


def test_the_floor_counts_every_offset_of_every_pair_both_ways(rows: list[gpu.Row]) -> None:
    """Two prompts of 64 tokens have 4 blocks of 8: 6 pairs, twice 8 offsets each."""
    entries = 2 * 6 * 2 * 8
    heads, planes = (row.floor_s for row in rows[:2])
    assert heads == pytest.approx(4 * entries * (1 + 16) / 1e9)
    assert planes == pytest.approx(4 * 8 * entries / 1e9)


def test_what_was_measured_is_written(tmp_path: Path) -> None:
    case = gpu.Case(1, 64, {gpu.HEADS: gpu.Target(bar=1e9)})
    gpu.run(CPU, {TINY: [case]}, (), TINY, tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(row["model"], row["case"], row["met"]) for row in found["rows"]] == [("tiny", "1x64", True)]
    assert found["exponentials"] is None
    assert found["rows"][0]["share_of_floor"] is None


def test_a_bar_is_met_only_when_time_and_memory_stay_within_it() -> None:
    row = gpu.Row("m", "c", gpu.HEADS, forward_s=1.0, scored_s=1.4, extra_gigabytes=0.6, bar=1.5)
    assert row.met
    row.most_gigabytes = 0.5
    assert row.met is False
    assert gpu.Row("m", "c", gpu.HEADS, forward_s=1.0, scored_s=1.4).met is None


def test_growth_is_measured_for_every_size() -> None:
    sizes = {"tokens": (64,), "blocks": (2, 4), "planes": (4,), "layers": (1,)}
    asked = [growth.Growth(what, "", of) for what, of in sizes.items()]
    found = growth.grow([*asked, growth.Growth("tokens", "", (512,))], TINY, CPU, tokens=48)
    assert [len(one["heads_s"]) for one in found[:-1]] == [1, 2, 1, 1]
    assert "context of 256" in found[-1]["error"]


def test_theexponent_is_the_slope_in_logarithms() -> None:
    assert growth.exponent((2, 4, 8), (3.0, 12.0, 48.0)) == pytest.approx(2.0)
    assert growth.exponent((2, 4), (1.0, -1e-6)) is None


def test_what_the_monitor_adds_is_a_share_of_the_time() -> None:
    assert 0 < monitor.main(TINY, CPU) < 1


def test_long_prompts_are_measured_and_their_growth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    long_prompts.main(["--quick", "--tokens", "256", "512", "--json", str(file)])
    found = json.loads(file.read_text())
    assert [(row["tokens"], row["work"], row["blocks"]) for row in found["rows"]] == [
        (n, work, blocks)
        for n, eights in ((256, 28), (512, 60))
        for work, blocks in (
            (long_prompts.FORWARD, 0),
            (long_prompts.EIGHTS, eights),
            (long_prompts.FIXED, 32),
            (long_prompts.SWAPPED, 32),
        )
    ]
    assert all(row["error"] is None and row["seconds"] > 0 for row in found["rows"])
    assert set(found["exponents"]) == {
        f"{work}: {what}"
        for work in (long_prompts.FORWARD, long_prompts.EIGHTS, long_prompts.FIXED, long_prompts.SWAPPED)
        for what in ("seconds", "memory")
    }
    assert "tokens^" in capsys.readouterr().out


def test_the_growth_of_long_prompts_is_that_of_what_is_added() -> None:
    rows = [
        long_prompts.Row(n, work, seconds=seconds(n / 1000), peak_gigabytes=n / 1e4)
        for n in (1000, 2000, 4000)
        for work, seconds in (
            (long_prompts.FORWARD, lambda k: k),
            (long_prompts.EIGHTS, lambda k: k + k**2),
            (long_prompts.FIXED, lambda k: 3 * k),
        )
    ]
    found = long_prompts.growth(rows)
    assert found[f"{long_prompts.EIGHTS}: seconds"] == pytest.approx(2.0)
    assert found[f"{long_prompts.FIXED}: seconds"] == pytest.approx(1.0)
    assert found[f"{long_prompts.EIGHTS}: memory"] == pytest.approx(1.0)


def test_long_prompts_end_in_time_and_say_what_failed() -> None:
    found = long_prompts.run(long_prompts.TINY, (256,), 8, CPU, most=-1.0)
    assert {row["error"] for row in found["rows"]} == {"left out: no time left"}
    short = replace(long_prompts.TINY, positions=256)
    found = long_prompts.run(short, (512,), 8, CPU)
    assert [row["error"] is None for row in found["rows"]] == [True, False, False, False]
    assert "longer than the model's context" in found["rows"][1]["error"]


@pytest.mark.slow
def test_what_a_sweep_adds_is_a_share_of_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "FILE", sweep.FILE.replace("length = 96", "length = 8"))
    assert sweep.main("letter", items=2, prompts=2) > -1


def test_twins_are_trained_on_shuffled_answers_and_kept_as_tables(tmp_path: Path) -> None:
    gpu_study.main(["twins", "--small", "--out", str(tmp_path)])
    for name in ("number-0", "number-1", "letter-0", "letter-1"):
        run = rs.open(tmp_path / "twins" / name)
        assert run.run.settings["answers"] == "shuffled"
        assert run.tables["scores"]["step"].unique().tolist() == [0, 2, 4]
    gpu_study.collected_tables(tmp_path / "twins", tmp_path / "twins.tar")
    with tarfile.open(tmp_path / "twins.tar") as archive:
        assert len(archive.getnames()) == 4 * 4


@pytest.mark.slow
def test_all_parts_run_beside_one_another(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path_factory.mktemp("text")
    example = script("train_language_model")
    text = source / "text.txt"
    text.write_text("\n\n".join(file.read_text() for file in (EXAMPLES.parent / "docs").glob("*.md")))
    ids, tokenizer = example.encoded(text, 1024)
    np.savez(source / "ids.npz", tokens=ids)
    tokenizer.save(str(source / "tokenizer.json"))
    gpu_study.main(
        ["all", "--small", "--tokens", str(source / "ids.npz"), "--seeds", "0", "--out", str(tmp_path)]
    )
    assert {file.name for file in tmp_path.iterdir()} == {
        f"{part}.{kind}" for part in ("twins", "letter", "language") for kind in ("log", "tar")
    }
    assert capsys.readouterr().out.count(": ended with 0 after") == 3


def test_a_cache_plan_at_many_shares(
    stand_in: rs.Subject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"prompts": 1, "window": 4, "sinks": 1, "length": 8, "pairs": 5, "passage": 20, "random_draws": 1}
    plan = plans.frontier(stand_in, tmp_path / "run", frontier=(0.5,), rankings=("far_task", "random"), **sizes)
    assert set(plan.points["ranking"]) == {"far_task", "random", "any"}
    assert set(plan.points["source"]) == {"repeats", "lookup", "text"}
    printed = capsys.readouterr().out
    assert "loss on lookup by the share of key heads" in printed
    assert plan.sentences()[0] in printed
    assert (tmp_path / "run" / "plan.json").is_file()


def test_what_a_draw_of_the_null_costs() -> None:
    subject = rs.load((tiny("llama", num_hidden_layers=1), None))
    cost = user_waits.draw_cost(subject, rs.tasks.from_tokens(tokens(2, 12)), 3)
    assert 0 < cost.weights < cost.draw < 5
    assert 0 < cost.forward < 5
    assert cost.ratio == pytest.approx((cost.draw - cost.weights) / cost.forward)


def test_what_a_user_waits_for_is_split_into_its_parts(tmp_path: Path) -> None:
    user_waits.main(["--tiny", "--out", str(tmp_path / "waits.json")])
    rows = json.loads((tmp_path / "waits.json").read_text())
    calls = ["first of all", "first", "second", "page"]
    assert [row["call"] for row in rows] == 2 * calls
    for row in rows:
        assert row["ratio"] == pytest.approx(row["seconds"] / row["forward_s"])
        used = {part for part, seconds in row["parts"].items() if seconds > 0}
        assert (
            {"examples", "page"} <= used if row["call"] == "page" else {"reading", "scoring", "tables"} <= used
        )
