"""Items as tasks of a Ray cluster: a running one, by its address, or one that is started here for the sweep.

Each task asks for a processor and a GPU where there are any; Ray places it where that is free, and begins it again where a process or a node is lost. The run is made in a folder of
the node, and brought into the sweep's folder when it is whole, or written to storage that everybody sees. A driver that is
gone takes its tasks with it; a new one goes on with what was brought or written.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rotoscope.errors import RotoscopeError
from rotoscope.progress import progress_bar
from rotoscope.results.items import FAILED, Outcome, close
from rotoscope.settings import SweepSettings
from rotoscope.sweep.carrying import Storage, packed, scratch_for, unpack
from rotoscope.sweep.here import THREADS
from rotoscope.sweep.items import Item

WAIT_S = 5.0
"""For a cluster to answer at its address."""
LOST_TRIES = 10
"""How often an item is begun again whose process or node was lost."""
SHARES = 8
"""A GPU is given to at most so many items at once."""
TYPE, LITTLE = "accelerator_type:", 0.001
"""How Ray's nodes say which GPUs they have, and what is asked of that: only that it is there."""
HOST_AND_PORT = re.compile(r"(?:ray://)?(?P<host>\[[^\]]+\]|[^:/]+):(?P<port>\d{1,5})")


def check_cluster(address: str | None) -> None:
    """Refuse a cluster that is not there, before anything is written."""
    _library()
    if address is not None:
        _answers(address)


def run_on_ray(
    items: Sequence[Item],
    folder: Path,
    storage: Storage | None,
    wanted: SweepSettings,
    show_progress: bool | None,
) -> None:
    """Run items on a cluster; their runs are brought into the sweep's folder, or written to storage."""
    with cluster(wanted.address) as nodes:
        _run(items, folder, storage, nodes, show_progress)


def _library() -> Any:
    try:
        import ray
    except ImportError as missing:
        raise RotoscopeError("--on ray needs: pip install 'rotoscope[ray]'") from missing
    return ray


@dataclass(frozen=True)
class Nodes:
    """What a cluster has."""

    memory: float
    """Gigabytes of the node with most."""
    gpus: int = 0
    most_gpus: int = 1
    """Of the node with most."""
    cards: Mapping[str, float] = field(default_factory=dict)
    """Gigabytes of the smallest GPU of every type, where they say so; a type is what Ray calls a node's accelerators."""

    @property
    def smallest(self) -> float | None:
        return min(self.cards.values(), default=None)

    @property
    def largest(self) -> float | None:
        return max(self.cards.values(), default=None)


@contextmanager
def cluster(address: str | None) -> Iterator[Nodes]:
    """Be connected to a cluster; one that is not there is refused after a moment."""
    ray = _library()
    # Settings may come from the environment, and those of all nodes have to be the driver's.
    own = {name: value for name, value in os.environ.items() if name.startswith(("ROTOSCOPE_", "PYTHONPATH"))}
    variables = own | THREADS
    how: dict[str, Any] = {
        "logging_level": "ERROR",
        "log_to_driver": False,
        "runtime_env": {"env_vars": variables},
    }
    if address is None:
        how |= {"include_dashboard": False}
    try:
        ray.init(address=address or "local", **how)
    except Exception as problem:  # of many kinds, and none is documented
        said = str(problem).strip().splitlines()
        raise RotoscopeError(
            f"no Ray cluster can be used at {address or 'this machine'} ({said[0] if said else type(problem).__name__}); start one "
            "with ray start --head, or leave --address out to start one here"
        ) from problem
    try:
        yield _nodes(ray)
    finally:
        ray.shutdown()


def _answers(address: str) -> None:
    """Ray itself waits for minutes where nobody is: whether somebody is is asked first."""
    found = HOST_AND_PORT.fullmatch(address)
    if found is None:
        if address != "auto":
            raise RotoscopeError(
                f"--address {address}: a cluster is written as 10.0.0.1:6379, ray://10.0.0.1:10001 or auto"
            )
        return
    try:
        with socket.create_connection((found["host"].strip("[]"), int(found["port"])), timeout=WAIT_S):
            pass
    except (OSError, OverflowError) as problem:
        raise RotoscopeError(
            f"no Ray cluster answers at {address} ({problem}); start one with ray start --head, or leave --address out to "
            "start one here"
        ) from problem


def _nodes(ray: Any) -> Nodes:
    living = [node for node in ray.nodes() if node["Alive"]]
    memory = max((node["Resources"].get("memory", 0.0) for node in living), default=0.0) / 1e9
    with_cards = [node for node in living if node["Resources"].get("GPU", 0) >= 1]
    counts = [int(node["Resources"]["GPU"]) for node in with_cards]
    return Nodes(memory, sum(counts), max(counts, default=1), _cards(ray, with_cards) if counts else {})


def _cards(ray: Any, nodes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Gigabytes of the smallest GPU of every type; Ray knows how many there are, not how large."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(num_cpus=0, num_gpus=0)(_card_here)
    asked = [
        look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
        for node in nodes
    ]
    found: dict[str, float] = {}
    for node, size in zip(nodes, ray.get(asked, timeout=120), strict=True):
        if size is not None:
            kind = next((name for name in node["Resources"] if name.startswith(TYPE)), "")
            found[kind] = min(size, found.get(kind, size))
    return found


def _card_here() -> float | None:
    import subprocess

    words = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
        return min(float(line) for line in said.split()) * 1.048576e6 / 1e9
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def resources(item: Item, nodes: Nodes) -> dict[str, Any]:
    """What a task asks for: a processor, and a GPU where there are any; all of a node's where the model is spread."""
    if not nodes.gpus or item.on_cpu:
        return {"num_cpus": 1}
    return {"num_cpus": 1, "num_gpus": nodes.most_gpus if item.spread else 1}


def _run(
    items: Sequence[Item],
    folder: Path,
    storage: Storage | None,
    nodes: Nodes,
    show_progress: bool | None,
) -> None:
    """Hand every item over, and bring what comes back."""
    ray = _library()
    make = ray.remote(max_retries=LOST_TRIES, retry_exceptions=False)(TASK)
    asked = {
        make.options(name=item.name, **resources(item, nodes)).remote(
            item.command.line(item.given, "OUT"),
            item.name,
            None if storage is None else storage.address,
            os.getcwd(),
        ): item
        for item in items
    }
    with progress_bar("sweep", len(items), show_progress) as bar:
        while asked:
            bar.doing(f"{len(asked)} left on {nodes.gpus or ray.cluster_resources().get('CPU', 0):g} places")
            for ready in ray.wait(list(asked), num_returns=1)[0]:
                item = asked.pop(ready)
                try:
                    content, _ = ray.get(ready)
                except ray.exceptions.RayError as lost:
                    said = str(lost).strip().splitlines()
                    why = f"its task was lost ({type(lost).__name__}: {said[0] if said else 'no reason is known'})"
                    _note_lost(item.name, Outcome(FAILED, None, why), folder, storage)
                else:
                    if content is not None:
                        unpack(content, folder / item.name)
                bar.advance()


def _note_lost(name: str, outcome: Outcome, folder: Path, storage: Storage | None) -> None:
    if storage is None:
        close(folder / name, outcome)
        return
    with scratch_for(name) as place:
        close(place, outcome)
        storage.put(place)


def made_on_node(
    words: list[str], name: str, storage: str | None, home: str
) -> tuple[bytes | None, dict[str, Any]]:
    """Make an item on a node: its folder as bytes, or nothing where it was written to storage; and how it ended."""
    from rotoscope.sweep.one_item import run_item

    if os.path.isdir(home):  # paths of models are those of the driver
        os.chdir(home)
    with scratch_for(name) as place:
        kept = None if storage is None else Storage(storage)
        outcome = run_item([word if word != "--out=OUT" else f"--out={place}" for word in words], place)
        if kept is None:
            return packed(place), asdict(outcome)
        kept.put(place)
        return None, asdict(outcome)


TASK = made_on_node
"""What nodes do."""
