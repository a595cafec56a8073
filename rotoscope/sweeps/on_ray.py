"""Items as tasks of a Ray cluster: a running one, by its address, or one that is started here for the sweep.

Each task takes a processor and, where the cluster has GPUs, a GPU; Ray starts it again where its process or its node is lost,
and its run goes on where it was. Tasks write into the sweep's folder, which all nodes must see.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rotoscope.errors import RotoscopeError, pip_install
from rotoscope.progress import progress_bar
from rotoscope.sweeps.items import Item
from rotoscope.sweeps.local_pool import THREADS
from rotoscope.sweeps.result import FAILED, FINISHED, ITEM, Outcome, close, outcome_of

WAIT_S = 5.0
"""For a cluster to answer at its address."""
MOST_LOSSES = 10
"""How often an item is started again whose process or node was lost."""
HOST_AND_PORT = re.compile(r"(?:ray://)?(?P<host>\[[^\]]+\]|[^:/]+):(?P<port>\d{1,5})")


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a cluster."""

    total: int = 0
    largest_node: int = 0
    """On the node that has the most."""


def check_cluster(address: str | None) -> None:
    """Refuse a cluster that does not answer, before anything is written; Ray itself would wait for minutes."""
    _library()
    if address is None or address == "auto":
        return
    parts = HOST_AND_PORT.fullmatch(address)
    if parts is None:
        raise RotoscopeError(
            f"--address {address}: a cluster is written as 10.0.0.1:6379, ray://10.0.0.1:10001 or auto"
        )
    try:
        with socket.create_connection((parts["host"].strip("[]"), int(parts["port"])), timeout=WAIT_S):
            pass
    except (OSError, OverflowError) as problem:
        raise RotoscopeError(
            f"no Ray cluster answers at {address} ({problem}); start one with ray start --head, or leave --address out to "
            "start one here"
        ) from problem


def run_on_ray(
    items: Sequence[Item], folder: Path, address: str | None, show_progress: bool | None
) -> dict[str, Outcome]:
    """Run items on a cluster; the outcome of every item by its name."""
    outcomes = dict[str, Outcome]()
    for item in items:
        with suppress(OSError):  # so that a note that a node finds is of this sweep's own task
            (folder / item.name / ITEM).unlink(missing_ok=True)
    with cluster(address) as gpus:
        ray = _library()
        task = ray.remote(max_retries=MOST_LOSSES, retry_exceptions=False)(TASK)
        shared = folder.absolute()
        running = {
            task.options(name=item.name, **resources(item, gpus)).remote(
                item.line(shared), str(shared / item.name), os.getcwd()
            ): item
            for item in items
        }
        with progress_bar("sweep", len(items), show_progress) as bar:
            while running:
                bar.doing(
                    f"{len(running)} left on {gpus.total or ray.cluster_resources().get('CPU', 0):g} places"
                )
                for ready in ray.wait(list(running), num_returns=1)[0]:
                    item = running.pop(ready)
                    outcomes[item.name] = _outcome(ray, ready, folder / item.name)
                    bar.advance()
    return outcomes


def run_on_node(words: list[str], folder: str, home: str) -> Outcome:
    """Run an item on a node, from the driver's working folder."""
    from rotoscope.sweeps.run_item import run_item

    if os.path.isdir(home):  # where relative paths of models begin
        os.chdir(home)
    outcome = outcome_of(Path(folder))
    if outcome.state == FINISHED:  # the task is run again because its node was lost after the item's end
        return outcome
    return run_item(words, Path(folder))


TASK = run_on_node
"""What nodes do."""


def _outcome(ray: Any, ready: Any, folder: Path) -> Outcome:
    """How a task ended; one whose run cannot be seen here has failed."""
    try:
        outcome: Outcome = ray.get(ready)
    except ray.exceptions.RayError as lost:
        lines = str(lost).strip().splitlines()
        reason = f"its task was lost ({type(lost).__name__}: {lines[0] if lines else 'no reason is known'})"
        outcome = Outcome(FAILED, None, reason)
        with suppress(RotoscopeError):  # where nothing can be written, the sweep's own table says it
            close(folder, outcome)
    if outcome.state == FINISHED and outcome_of(folder).state != FINISHED:
        reason = f"its node wrote to a folder that is not seen here; give --out a folder that all nodes share, not {folder.parent}"
        return Outcome(FAILED, outcome.seconds, reason)
    return outcome


def resources(item: Item, gpus: Gpus) -> dict[str, int]:
    """What a task asks for; an item that spreads its model takes all GPUs of a node."""
    if not gpus.total or item.on_cpu:
        return {"num_cpus": 1}
    return {"num_cpus": 1, "num_gpus": gpus.largest_node if item.spread else 1}


@contextmanager
def cluster(address: str | None) -> Iterator[Gpus]:
    """Be connected to a cluster."""
    ray = _library()
    # Settings may come from the environment, and those of all nodes have to be the driver's.
    own = {name: value for name, value in os.environ.items() if name.startswith(("ROTOSCOPE_", "PYTHONPATH"))}
    options: dict[str, Any] = {
        "logging_level": "ERROR",
        "log_to_driver": False,
        "runtime_env": {"env_vars": own | THREADS},
    }
    if address is None:
        options |= {"include_dashboard": False}
    try:
        ray.init(address=address or "local", **options)
    except Exception as problem:  # of many types, none of them documented
        lines = str(problem).strip().splitlines()
        raise RotoscopeError(
            f"no Ray cluster can be used at {address or 'this machine'} ({lines[0] if lines else type(problem).__name__}); start one "
            "with ray start --head, or leave --address out to start one here"
        ) from problem
    try:
        counts = [int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]]
        yield Gpus(sum(counts), max(counts, default=0))
    finally:
        ray.shutdown()


def _library() -> Any:
    try:
        import ray
    except ImportError as missing:
        raise RotoscopeError(f"--on ray needs: {pip_install('ray')}") from missing
    return ray
