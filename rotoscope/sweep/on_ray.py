"""Items as tasks of a Ray cluster: a running one, by its address, or one that is started here for the sweep.

Each task asks for a processor, the memory that its item is expected to take, and of a GPU the share that it needs of the smallest
card; Ray places it where that is free, and begins it again where a process or a node is lost. The run is made in a folder of
the node, and brought into the sweep's folder when it is whole, or written to storage that everybody sees. A driver that is
gone takes its tasks with it; a new one goes on with what was brought or written.
"""

from __future__ import annotations

import math
import os
import re
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rotoscope.errors import RotoscopeError
from rotoscope.progress import progress_bar
from rotoscope.results.items import FAILED, ITEM, Outcome, close
from rotoscope.results.record import RUN
from rotoscope.settings import SweepSettings
from rotoscope.sweep.before import refuse_too_large, waiting
from rotoscope.sweep.carrying import Storage, packed, scratch_for, unpack
from rotoscope.sweep.estimates import Expected, expected
from rotoscope.sweep.here import THREADS
from rotoscope.sweep.items import Item

WAIT_S = 5.0
"""For a cluster to answer at its address."""
LOST_TRIES = 10
"""How often an item is begun again whose process or node was lost."""
SHARES = 8
"""A GPU is given to at most so many items at once."""
HOST_AND_PORT = re.compile(r"(?:ray://)?(?P<host>\[[^\]]+\]|[^:/]+):(?P<port>\d{1,5})")


@contextmanager
def run_on_ray(
    items: Sequence[Item], folder: Path, wanted: SweepSettings, show_progress: bool | None
) -> Iterator[Callable[[str], Path] | None]:
    """Run the items that are not finished; gives where they lie then, if that is not the sweep's folder."""
    _library()
    if wanted.storage is None:
        _run_left(waiting(items, folder, retry=wanted.retry_failed), folder, None, wanted, show_progress)
        yield None
        return
    storage = Storage(wanted.storage)
    storage.check()
    with tempfile.TemporaryDirectory(prefix="rotoscope-sweep-") as copies:
        here = Path(copies)
        for item in items:
            storage.get(item.name, here / item.name, only=(ITEM, RUN))
        _run_left(waiting(items, here, retry=wanted.retry_failed), folder, storage, wanted, show_progress)
        for item in items:
            storage.get(item.name, here / item.name, only=(".json", ".parquet"))
        yield lambda name: here / name


def _run_left(
    left: list[Item], folder: Path, storage: Storage | None, wanted: SweepSettings, show_progress: bool | None
) -> None:
    if left:
        with cluster(wanted.address) as nodes:
            takes = {item.name: expected(item, None if nodes.gpus else "cpu") for item in left}
            for cards, most in ((True, nodes.card), (False, nodes.memory)):
                some = [item for item in left if on_gpu(item, nodes) is cards]
                refuse_too_large(some, takes, most, "the cluster")
            _run(left, folder, storage, takes, nodes, show_progress)


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
    gpus: int
    card: float | None = None
    """Gigabytes of the smallest GPU, where there are some and they say so."""


@contextmanager
def cluster(address: str | None) -> Iterator[Nodes]:
    """Be connected to a cluster; one that is not there is refused after a moment."""
    ray = _library()
    if address is not None:
        _answers(address)
    path = os.environ.get("PYTHONPATH")
    variables = THREADS | ({"PYTHONPATH": path} if path else {})
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
    cards = sum(int(node["Resources"]["GPU"]) for node in with_cards)
    return Nodes(memory, cards, _card(ray, with_cards) if cards else None)


def _card(ray: Any, nodes: Sequence[Mapping[str, Any]]) -> float | None:
    """Gigabytes of the smallest GPU; Ray knows how many there are, not how large."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(num_cpus=0, num_gpus=0)(_card_here)
    asked = [
        look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
        for node in nodes
    ]
    found = [size for size in ray.get(asked, timeout=120) if size is not None]
    return min(found, default=None)


def _card_here() -> float | None:
    import subprocess

    words = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
        return min(float(line) for line in said.split()) * 1.048576e6 / 1e9
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def on_gpu(item: Item, nodes: Nodes) -> bool:
    return nodes.gpus > 0 and item.given.get("device") != "cpu"


def resources(item: Item, takes: Expected, nodes: Nodes) -> dict[str, Any]:
    """What a task asks for: on a GPU the share of it that its memory takes, elsewhere a processor and its memory."""
    if on_gpu(item, nodes):
        needed = takes.gigabytes
        known = needed is not None and nodes.card is not None and not item.given.get("force")
        share = math.ceil(SHARES * needed / nodes.card) / SHARES if known else 1.0  # type: ignore[operator]
        return {"num_cpus": 1, "num_gpus": min(share, 1.0)}
    memory = min(takes.gigabytes or 0.0, nodes.memory)
    return {"num_cpus": 1, "memory": int(memory * 1e9)}


def _run(
    items: Sequence[Item],
    folder: Path,
    storage: Storage | None,
    takes: Mapping[str, Expected],
    nodes: Nodes,
    show_progress: bool | None,
) -> None:
    """Hand every item over, and bring what comes back."""
    ray = _library()
    make = ray.remote(max_retries=LOST_TRIES, retry_exceptions=False)(TASK)
    asked = {
        make.options(name=item.name, **resources(item, takes[item.name], nodes)).remote(
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
    with scratch_for(name, Path(tempfile.gettempdir())) as place:
        close(place, outcome)
        storage.put(place)


def made_on_node(
    words: list[str], name: str, storage: str | None, home: str
) -> tuple[bytes | None, dict[str, Any]]:
    """Make an item on a node: its folder as bytes, or nothing where it was written to storage; and how it ended."""
    from rotoscope.sweep.one_item import run_item

    if os.path.isdir(home):  # paths of models are those of the driver
        os.chdir(home)
    with scratch_for(name, Path(tempfile.gettempdir())) as place:
        kept = None if storage is None else Storage(storage)
        outcome = run_item([word if word != "--out=OUT" else f"--out={place}" for word in words], place)
        if kept is None:
            return packed(place), asdict(outcome)
        kept.put(place)
        return None, asdict(outcome)


TASK = made_on_node
"""What nodes do."""
