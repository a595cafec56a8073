"""Two processes that share a model score its heads as one does that has them all."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rotoscope as rs
from rotoscope.errors import ModelError
from rotoscope.reading import HeadReader
from tests.reading.test_device_maps import same, saved
from tests.sharing import HOW, attention, shown
from tests.tables import scores_agree

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def together(ranks: int, *command: str, folder: Path) -> list[subprocess.CompletedProcess[str]]:
    """The same command in so many processes, as torchrun starts them."""
    where = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**os.environ, **where, "RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": str(ROOT)},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        ended = [(*one.communicate(timeout=120), one.returncode) for one in started]
    finally:
        for one in started:
            one.kill()
    return [subprocess.CompletedProcess(command, code, out, err) for out, err, code in ended]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run that two processes made, and what each of them saw."""
    place = tmp_path_factory.mktemp("shared")
    saved(place / "model")
    ended = together(2, "tests.sharing", str(place / "model"), str(place / "run"), folder=place)
    assert [one.returncode for one in ended] == [0, 0], "\n".join(one.stderr[-3000:] for one in ended)
    return place, [json.loads((place / f"run-{rank}.json").read_text()) for rank in range(2)]


def test_tables_are_those_of_the_whole_model(shared: tuple[Path, list[dict[str, Any]]]) -> None:
    place, _ = shared
    whole = rs.load(place / "model", name="mine", dtype="float64")
    alone, found = rs.profile(whole, shown(whole), **HOW), rs.open(place / "run")
    assert set(alone.tables) == set(found.tables)
    for name, table in alone.tables.items():
        if name == "attention":  # lists of numbers
            for column in ("attention", "attention_swapped"):
                assert np.allclose(np.stack(table[column]), np.stack(found.tables[name][column]), atol=1e-6)
            continue
        same(table, found.tables[name])
    same(alone.heads, found.heads)
    assert found.run.proof.layers == 3
    assert found.run.proof.largest_difference < 1e-6


def test_each_process_has_heads_of_its_own(shared: tuple[Path, list[dict[str, Any]]]) -> None:
    place, (first, second) = shared
    whole = rs.load(place / "model", dtype="float64")
    assert [one["here"] for one in (first, second)] == [[2, 2, 2]] * 2
    assert (first["starts"], second["starts"]) == ([0, 0, 0], [2, 2, 2])
    assert first["proof"] != second["proof"], "each proves its own"
    for one in (first, second):
        assert len(one["proof"]) == 3
        assert (one["fingerprint"], one["weights"]) == (whole.fingerprint, whole.weights_fingerprint)
        assert one["some"] == [[1, 0], [1, 3]]
        assert one["again"] == one["heads"]
    assert first["heads"] == second["heads"], "all see the whole result"


def test_attention_is_that_of_all_heads(shared: tuple[Path, list[dict[str, Any]]]) -> None:
    place, found = shared
    alone = attention(HeadReader(rs.load(place / "model", dtype="float64").model))
    for one in found:
        for what in ("means", "of_heads"):
            assert np.allclose(one["attention"][what], alone[what], rtol=0, atol=1e-9)


def test_one_process_writes(shared: tuple[Path, list[dict[str, Any]]]) -> None:
    place, _ = shared
    assert sorted(part.name for part in place.iterdir()) == ["model", "run", "run-0.json", "run-1.json"]


def test_what_cannot_be_put_together_is_refused(shared: tuple[Path, list[dict[str, Any]]]) -> None:
    _, found = shared
    wanted = (
        "no random null for it",
        "--known changes",
        "spread over several processes",
        "this one is in memory",
    )
    for one in found:
        assert len(one["refused"]) == len(wanted)
        assert all(part in said for part, said in zip(wanted, one["refused"], strict=True))


def test_alone_there_is_nobody_to_share_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ModelError, match="this one is alone; start several: torchrun"):
        rs.load(saved(tmp_path / "model"), tensor_parallel=True)
    with pytest.raises(ModelError, match="a device of its own"):
        rs.load(tmp_path / "model", tensor_parallel=True, device="cpu")


def test_a_stopped_run_goes_on(shared: tuple[Path, list[dict[str, Any]]]) -> None:
    """The first process has pieces that the others do not; they are told, so that nobody waits for one who does not come."""
    _, found = shared
    assert [one["batches"] for one in found] == [{"stopped": 2, "after": 1}] * 2


@pytest.mark.slow
def test_the_command_of_two_processes(tmp_path: Path) -> None:
    """One of them speaks and writes; what is wrong is said once."""
    saved(tmp_path / "model")
    line = "rotoscope profile model --task repeats --length 6 --prompts 2 --null none --no-figures --tensor-parallel"
    ended = together(2, *line.split(), "--out", "run", folder=tmp_path)
    assert [one.returncode for one in ended] == [0, 0], "\n".join(one.stderr[-3000:] for one in ended)
    assert "run.json" in ended[0].stdout
    assert not ended[1].stdout + ended[1].stderr
    then = next(said for said in ended[0].stdout.splitlines() if said.strip().startswith("rotoscope profile"))
    assert "--device-map auto --null random" in then
    went_on = together(1, *then.split(), "--no-figures", folder=tmp_path)[0]
    assert went_on.returncode == 0, went_on.stderr[-3000:]
    whole = rs.load(tmp_path / "model")
    alone = rs.profile(whole, rs.tasks.repeats(whole, length=6, count=2), null="none")
    found = rs.open(tmp_path / "run")
    assert found.heads[["layer", "head"]].equals(alone.heads[["layer", "head"]])
    scores_agree(found.prompts, alone.prompts)
