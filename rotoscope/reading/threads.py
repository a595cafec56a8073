"""Torch's threads, of which a small model needs one, and a user's threads, of which one at a time may run a model."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rotoscope.errors import ModelError

_LOCKS: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_LOCK_OF_LOCKS = threading.Lock()


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Compute with one thread inside: for small matrices on a CPU it is faster than several, and far faster where cores are shared."""
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def alone(model: Any) -> Iterator[None]:
    """Refuse a model that another thread is reading: hooks and attention functions of one reading would show in the other."""
    with _LOCK_OF_LOCKS:
        lock = _LOCKS.setdefault(model, threading.RLock())
    if not lock.acquire(blocking=False):
        raise ModelError(
            "this model is being read by another thread; let the threads take turns, or give each a copy of the model "
            "(copy.deepcopy)"
        )
    try:
        yield
    finally:
        lock.release()
