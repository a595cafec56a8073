"""Two processes that train one model on one machine, talking by gloo."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import rotoscope as rs

PROGRAM = """
import json, os, sys
from pathlib import Path
import torch
from torch import distributed
import rotoscope as rs
from tests.monitor.trained import TOKENS, fresh, loop, trainer

folder, how, breaks = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "breaks"
torch.set_num_threads(1)
first = os.environ["RANK"] == "0"
monitor = rs.HeadMonitor(TOKENS, every="40%" if how == "budget" else 2, out=folder / "run") if how != "alone" else None
if breaks:
    measure = monitor.watched[""].measure
    monitor.watched[""].measure = lambda subject, reader, step: measure(subject, reader, step) if step < 4 else 1 / 0
if how == "trainer":
    done = trainer(folder, model := fresh(), monitor, ddp_backend="gloo")
    done.train()
    logged = [row["step"] for row in done.state.log_history if "rotoscope/pure_heads" in row]
else:
    distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(fresh())
    loop(model, monitor)
    logged = []
    if monitor is not None:
        monitor.finish()
total = sum(float(weight.double().abs().sum()) for weight in model.parameters())
told = {"weights": total, "logged": logged, "off": monitor.off if monitor else None, "next": monitor.schedule.next_look if monitor else 0}
Path(folder / f"said-{os.environ['RANK']}.json").write_text(json.dumps(told))
"""


def two(folder: Path, how: str, breaks: str = "") -> list[dict[str, object]]:
    """Both processes, to their end: what each said."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    about = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder), how, breaks]
    started = [
        subprocess.Popen(
            command,
            env=os.environ | about | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    for process in started:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
    return [json.loads((folder / f"said-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
def test_the_first_writes_and_both_keep_in_step(tmp_path: Path) -> None:
    first, second = two(tmp_path, "trainer")
    assert first["weights"] == second["weights"]
    assert first["logged"] == [2, 4, 6]
    run = rs.open(tmp_path / "run")
    assert run.points["step"].tolist() == [0, 2, 4, 6]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["loop", "budget"])
def test_a_loop_of_two_is_as_without_a_monitor(tmp_path: Path, how: str) -> None:
    plain = two(tmp_path / "plain", "alone")
    first, second = two(tmp_path / "watched", how)
    assert first["weights"] == second["weights"] == plain[0]["weights"]
    assert first["next"] == second["next"]


@pytest.mark.slow
def test_an_error_in_the_first_is_heard_by_both(tmp_path: Path) -> None:
    first, second = two(tmp_path, "loop", "breaks")
    assert first["weights"] == second["weights"]
    assert "ZeroDivisionError" in str(first["off"])
    assert "the first process of the training says why" in str(second["off"])
