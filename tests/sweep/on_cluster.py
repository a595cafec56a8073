"""Sweeps of light runs on a Ray cluster of several nodes on this machine: run by test_ray.py, in an environment that has Ray.

    python -m tests.sweep.on_cluster WHAT

in a folder with a sweep.toml. What went on is printed as one line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rotoscope.sweeps import on_ray
from rotoscope.sweeps import run_item as one_item
from rotoscope.sweeps.driver import run_sweep
from rotoscope.sweeps.result import outcome_of
from tests.sweep.light import Commands
from tests.waiting import wait_until

NODES, CORES, STORE = 3, 1, 80_000_000
PATIENCE_S = 600.0


def light_on_node(*what: Any) -> Any:
    """What a task does, with light runs; nodes import this by its name."""
    one_item.run_words = Commands.main
    return on_ray.run_on_node(*what)


def finished() -> set[str]:
    found = [
        folder for folder in Path("swept").glob("*") if folder.is_dir() and not folder.name.startswith(".")
    ]
    return {folder.name for folder in found if outcome_of(folder).state == "finished"}


def lines() -> list[str]:
    journal = Path(os.environ["LIGHT_JOURNAL"])
    return journal.read_text().splitlines() if journal.exists() else []


class Home:
    """A cluster whose nodes can be killed."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": STORE}
        )
        sizes = {"num_cpus": CORES, "object_store_memory": STORE}
        self.nodes = [self.cluster.add_node(**sizes) for _ in range(NODES)]
        self.cluster.wait_for_nodes()
        self.address = self.cluster.address

    def kill_one(self) -> None:
        """Without a word of goodbye."""
        self.cluster.remove_node(self.nodes.pop(), allow_graceful=False)


def sweep(address: str, **how: Any) -> Any:
    on_ray.TASK = light_on_node
    return run_sweep("sweep.toml", on="ray", address=address, show_progress=False, **how)


def plainly(home: Home) -> dict[str, Any]:
    """All items, undisturbed; and once more, for nothing."""
    sweep(home.address)
    before = lines()
    again = sweep(home.address)
    return {"finished": sorted(finished()), "complete": again.run.complete, "again": lines() == before}


def losing_a_node(home: Home) -> dict[str, Any]:
    """A node is killed when a third is done."""
    driving = subprocess.Popen([sys.executable, "-m", "tests.sweep.on_cluster", "drive", home.address])
    wait_until(lambda: len(finished()) >= 8 or driving.poll() is not None, PATIENCE_S)
    before, known = finished(), len(lines())
    home.kill_one()
    code = driving.wait()
    begun_after = {line.split()[1] for line in lines()[known:] if line.startswith("begun")}
    return {
        "code": code,
        "finished": sorted(finished()),
        "before": len(before),
        "twice": sorted(before & begun_after),
    }


def losing_the_driver(home: Home) -> dict[str, Any]:
    """The driver is killed when a third is done, and another comes."""
    driving = subprocess.Popen([sys.executable, "-m", "tests.sweep.on_cluster", "drive", home.address])
    wait_until(lambda: len(finished()) >= 8 or driving.poll() is not None, PATIENCE_S)
    os.kill(driving.pid, signal.SIGKILL)
    driving.wait()
    before, known = finished(), len(lines())
    time.sleep(1.0)  # what its tasks still do is over soon
    found = sweep(home.address)
    begun_after = {line.split()[1] for line in lines()[known:] if line.startswith("begun")}
    return {
        "finished": sorted(finished()), "before": len(before), "twice": sorted(before & begun_after),
        "complete": found.run.complete,
    }  # fmt: skip


def failing(home: Home) -> dict[str, Any]:
    """Bad items, of which one kills its process each time."""
    on_ray.MOST_LOSSES = 1
    Path("bad").touch()
    found = sweep(home.address)
    errors = dict(zip(found.items["model"], found.items["error"], strict=True))
    Path("bad").unlink()
    again = sweep(home.address, retry_failed=True)
    return {"errors": errors, "states": list(again.items["state"])}


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "drive":
        sweep(*rest)
        return
    home = Home()
    try:
        found = globals()[what](home)
    finally:
        home.cluster.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
