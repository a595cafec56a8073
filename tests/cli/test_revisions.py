"""`rotoscope dynamics org/name --revisions`: from the command line to a run, with a hub on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rotoscope as rs
from tests.hub import serving
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny

PROGRAM = "from rotoscope.cli import main; main()"
LINE = ("dynamics", "org/model", "--task", "repeats", "--inputs", 1, "--no-page", "--device", "cpu")


@pytest.fixture
def branches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Three steps of a tiny model, of which the last is damaged."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROTOSCOPE_CACHE", str(tmp_path / "cache"))
    places = {f"step{step}": tmp_path / "published" / f"step{step}" for step in (1, 8, 9)}
    for seed, place in enumerate(places.values()):
        tiny("llama", seed=seed, num_hidden_layers=1).save_pretrained(place)
        word_tokenizer().save_pretrained(place)
    (places["step9"] / "model.safetensors").write_bytes(b"no")
    return places


@pytest.mark.slow
def test_branches_of_a_model_on_the_hub(
    run, branches: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is fetched is said first; prompts, and what is said of roles, are those of the last that can be read."""
    with serving(tmp_path / "hub", monkeypatch) as hub:
        hub.models["org/model"] = branches | {"main": branches["step9"]}
        code, output, error = run(*LINE, "--revisions", "step*", "main", "--verbose", "--out", tmp_path / "run")
        assert code == 0, error
        assert error.startswith("3 of 3 revisions of org/model are fetched: ")
        words = " ".join(output.split())
        assert "step9 was left out" in words
        assert "left out, since their names name no step: main" in words
        assert "says nothing of them" in words
        found = rs.open(tmp_path / "run")
        assert (found.steps, found.task) == ([1, 8], "repeats")
        assert found.points["revision"].tolist() == ["step1", "step8"]
        assert not any("/resolve/main/" in path or path.endswith("/revision/main") for path in hub.asked)
        code, _, error = run(
            *LINE, "--no-roles", "--revisions", "step*", "--most", 1, "--out", tmp_path / "one"
        )
        assert code == 2
        assert "org/model@step9" in error
        plain = [word for word in LINE if word not in ("--task", "repeats")]  # a language model needs no more
        code, output, error = run(*plain, "--revisions", "step*", "--no-roles", "--out", tmp_path / "plain")
        assert code == 0, error
        assert "scored on repeated random tokens" in output
        assert rs.open(tmp_path / "plain").task == "repeats"
        code, _, error = run(*LINE, "--out", tmp_path / "none")
        assert (code, error.count("\n")) == (2, 1)
        assert "--revisions 'step*'" in error


@pytest.mark.slow
def test_in_a_process_of_its_own(
    branches: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told by the environment alone where the hub is; then offline."""
    with serving(tmp_path / "unused", monkeypatch) as hub:
        hub.models["org/model"] = branches
        told = {
            "HF_ENDPOINT": hub.address,
            "HF_HUB_CACHE": str(tmp_path / "hub"),
            "ROTOSCOPE_CACHE": str(tmp_path),
        }
        command = [sys.executable, "-c", PROGRAM, *map(str, LINE), "--no-roles", "--revisions", "step[18]"]
        for offline, said in (("0", "2 of 2 revisions of org/model are fetched"), ("1", "")):
            ended = subprocess.run(
                [*command, "--out", str(tmp_path / f"run-{offline}")],
                env=os.environ | told | {"HF_HUB_OFFLINE": offline, "PYTHONPATH": os.pathsep.join(sys.path)},
                capture_output=True,
                text=True,
            )
            assert ended.returncode == 0, ended.stderr
            assert ended.stderr.startswith(said)
            assert rs.open(tmp_path / f"run-{offline}").steps == [1, 8]
        assert sum(path.endswith("model.safetensors") for path in hub.downloads) == 2
