"""A process that runs items one after the other: `python -m rotoscope.sweep.worker`.

Items come in as lines of JSON, and how each ended goes out as one. Whoever started it is watched: when that is gone, however
it went, this process is gone at once, and what it was doing goes on at the next try.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import signal
import sys
import threading
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from rotoscope.sweep.here import DRIVER
from rotoscope.sweep.one_item import run_item

PARENT_DIED = 1
"""prctl's PR_SET_PDEATHSIG."""


def main() -> None:
    """Run what comes in until nothing does."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what anybody prints between items is no answer
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which ends us
    asked: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    _read_libraries()
    while True:
        item = asked.get()
        outcome = run_item(item["words"], Path(item["folder"]))
        answers.write(json.dumps(asdict(outcome)) + "\n")


def _read_libraries() -> None:
    """torch and transformers, while the driver is still making up its mind."""
    import_module("rotoscope.analysis")
    import_module("transformers")
    import_module("rotoscope.cli.summary")
    gc.collect()
    gc.freeze()  # libraries stay: whoever looks for what can go need not look at them after every item


def _listen(asked: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        asked.put(json.loads(line))
    os._exit(0)  # the driver is gone, or has no more to do


def _die_with_parent() -> None:
    """Where the system can, it kills us with whoever started us; elsewhere the end of the input tells."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(PARENT_DIED, signal.SIGKILL)
        if os.environ.get(DRIVER, str(os.getppid())) != str(os.getppid()):
            os._exit(0)  # it was killed before we could ask for that


if __name__ == "__main__":
    main()
