"""Whether a file of weights holds the model that its configuration describes, and nothing else.

transformers fills what it does not find with random numbers and drops what it does not know, with a line in a log. A
profile of such a model is one of noise, another one each time. So both are refused, by name; whoever means it asks for it
(`allow_missing`), gets the same random numbers each time, and a warning in everything that comes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rotoscope.errors import ModelError

SHOWN = 4
SEED = 0


def check_complete(model: Any, report: dict[str, Any], place: str | Path, *, allow_missing: bool) -> list[str]:
    """Refuse a model whose tensors are not those of the file, or say in sentences what is wrong with it.

    `report` is what transformers gives with `output_loading_info`: tied weights and buffers that are not saved are not in
    it. Buffers that an older version saved are no fault either.
    """
    buffers = {name for name, _ in model.named_buffers()}
    missing = sorted(_names(report, "missing_keys"))
    other_shape = sorted(_names(report, "mismatched_keys"))
    unknown = sorted(name for name in _names(report, "unexpected_keys") if name not in buffers)
    unread = list(_names(report, "error_msgs"))
    said = []
    if missing:
        whole = len(model.state_dict())
        said.append(f"of {whole} tensors of the model, the file lacks {len(missing)} ({_some(missing)})")
    if other_shape:
        said.append(f"in another shape than the model's it has {len(other_shape)} ({_some(other_shape)})")
    if unread:
        said.append(f"it could not be read in {len(unread)} places ({_some(unread)})")
    if unknown:
        said.append(f"the file has {len(unknown)} that are no part of the model ({_some(unknown)})")
    if not said:
        return []
    what = "; ".join(said)
    if not allow_missing:
        raise ModelError(
            f"{place}: {what}. The configuration and the weights do not belong together; get both again. "
            "In Python, rs.load(..., allow_missing=True) takes them as they are: what is missing is then random"
        )
    return [
        f"weights and configuration do not belong together: {what}; what is missing is random (seed {SEED})"
    ]


def _names(report: dict[str, Any], key: str) -> Iterator[str]:
    """Names of tensors in a report; those of another shape come with their shapes."""
    for one in report.get(key) or ():
        yield str(one[0]) if isinstance(one, tuple) else str(one)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """What is random in here is the same each time, and nothing outside is touched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        yield
