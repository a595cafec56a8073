"""One-hop questions: how many, how long, and how they are put."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from rotoscope.settings import SEED, Settings, count

LOCAL, ENDPOINT = ("a model that runs here",), ("an endpoint",)


@dataclass(frozen=True, kw_only=True)
class AskSettings(Settings):
    """What is asked of a language model, here or behind an endpoint."""

    title: ClassVar = "Questions"
    meant_for: ClassVar = {
        "chat": LOCAL,
        "device": LOCAL,
        "dtype": LOCAL,
        "device_map": LOCAL,
        "rope": LOCAL,
        "model_name": ENDPOINT,
        "body": ENDPOINT,
        "concurrency": ENDPOINT,
        "dry_run": ENDPOINT,
    }
    bounds: ClassVar = {
        "lengths": count(
            1_000_000, "a sequence has at least one item, and no model has the positions for more"
        ),
        "runs": count(1_000, "a mean needs at least one run, and every one asks all questions"),
        "questions": count(1_000_000, "every length needs at least one, and each is a request"),
        "concurrency": count(1_000, "nothing is asked without it, and no server takes more at a time"),
        "seed": SEED,
    }

    task: Literal["number", "letter", "both"] = "both"
    """number: the letter so many places back. letter: the item that begins with a letter. Or both."""
    lengths: tuple[int, ...] | None = None
    """Lengths of the sequence; by default 12 to 300."""
    runs: int = 5
    """Runs with different questions, over which mean and standard deviation are taken."""
    questions: int = 20
    """Questions per task, length and run."""
    template: Path | None = None
    """A text file with {sequence} and {query} in it, instead of our instructions and examples; for one task."""
    seed: int = 0
    """Shifts all questions."""
    chat: bool | None = None
    """Ask as a user's turn in the model's chat template; by default where there is one."""
    body: str | None = None
    """Endpoint: what a request holds besides model and messages, as JSON, such as '{"max_completion_tokens": 16}'."""
    concurrency: int = 4
    """Endpoint: questions under way at a time."""
    dry_run: bool = False
    """Endpoint: say what would be sent, and send nothing."""
