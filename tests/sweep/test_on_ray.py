"""What a Ray task asks for and what comes of it, without a cluster."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rotoscope.errors import RotoscopeError, pip_install
from rotoscope.sweeps import on_ray
from rotoscope.sweeps.items import Item, Swept
from rotoscope.sweeps.result import FINISHED, Outcome, close, outcome_of
from tests.sweep.conftest import Light
from tests.sweep.light import light_run


class Lost(Exception):
    """As Ray says that a task is lost."""


def ray_with(answer: Outcome | Exception) -> Any:
    def get(ready: object) -> Outcome:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return SimpleNamespace(get=get, exceptions=SimpleNamespace(RayError=Lost))


def item(**given: Any) -> Item:
    return Item("first", Swept("profile"), given, ())


def test_a_task_takes_a_processor_and_a_gpu_where_there_is_one() -> None:
    cpus, gpus = on_ray.Gpus(), on_ray.Gpus(total=6, largest_node=4)
    assert on_ray.resources(item(), cpus) == {"num_cpus": 1}
    assert on_ray.resources(item(), gpus) == {"num_cpus": 1, "num_gpus": 1}
    assert on_ray.resources(item(device="cpu"), gpus) == {"num_cpus": 1}
    assert on_ray.resources(item(device_map="auto"), gpus) == {"num_cpus": 1, "num_gpus": 4}


def test_a_run_that_cannot_be_seen_here_has_failed(tmp_path: Path) -> None:
    """Its node wrote to another disk under the same name."""
    folder = tmp_path / "swept" / "first"
    outcome = on_ray._outcome(ray_with(Outcome(FINISHED, 1.0)), None, folder)
    assert outcome.state == "failed"
    assert outcome.error.startswith(
        "its node wrote to a folder that is not seen here; give --out a folder that all"
    )
    light_run(folder, {"model": "a"})
    close(folder, Outcome(FINISHED, 1.0))
    assert on_ray._outcome(ray_with(Outcome(FINISHED, 1.0)), None, folder).state == FINISHED


def test_a_task_that_is_run_again_leaves_a_finished_item_alone(tmp_path: Path) -> None:
    """Its node was lost after the item's end and before it could say so."""
    light_run(tmp_path / "first", {"model": "a"})
    close(tmp_path / "first", Outcome(FINISHED, 1.0))
    assert on_ray.run_on_node(["nothing"], str(tmp_path / "first"), "nowhere") == Outcome(FINISHED, 1.0)


def test_a_lost_task_is_noted_as_failed(tmp_path: Path) -> None:
    outcome = on_ray._outcome(ray_with(Lost("the node died\nmore")), None, tmp_path / "first")
    assert outcome.error == "its task was lost (Lost: the node died)"
    assert outcome_of(tmp_path / "first") == outcome


def test_a_cluster_that_does_not_answer_is_refused_at_once(
    light: Light, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", type(sys)("ray"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(RotoscopeError, match=f"no Ray cluster answers at 127.0.0.1:{port}"):
            light(on="ray", address=f"127.0.0.1:{port}")
    with pytest.raises(RotoscopeError, match="--address nowhere: a cluster is written as 10.0.0.1:6379"):
        light(on="ray", address="nowhere")
    assert not Path("swept").exists()


def test_ray_is_asked_for_when_it_is_missing(light: Light, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RotoscopeError, match=re.escape(f"--on ray needs: {pip_install('ray')}")):
        light(on="ray")
