"""A context plan as a file, and a model under the scaling that it names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rotoscope.errors import RunError
from rotoscope.reading import Subject, load
from rotoscope.reading.scaled import RopeScaling, check_scalable, scaled
from rotoscope.results.context_plan import AS_IT_IS, ContextPlan
from rotoscope.results.files import plain, write_json

PLAN = "plan.json"
LARGEST = 1_000_000
"""Bytes of a plan that is read; ours have a few thousand."""


@dataclass(frozen=True)
class ContextFile:
    """What `plan.json` of a context plan says."""

    model: str
    fingerprint: str
    """Of the model that the plan was made for."""
    trained: int
    to: int
    recommended: str | None
    optimised: str
    why: str
    scalings: Mapping[str, RopeScaling]

    @classmethod
    def of(cls, plan: ContextPlan) -> ContextFile:
        """The file of a plan."""
        found, settings = plan.recommendation, plan.run.settings
        return cls(
            settings["model"], settings["fingerprint"], plan.trained, plan.to, found.setting, found.optimised, found.why,
            {name: RopeScaling(name, **said) for name, said in plan.rope.items()},
        )  # fmt: skip

    def write(self, path: Path) -> None:
        """As JSON; under `scalings` stands, for each, what to write into a config.json."""
        said = {name: asdict(scaling) for name, scaling in self.scalings.items()}
        for one in said.values():
            del one["name"]
        write_json(path, {"plan": "context", **vars(self), "scalings": said})


def load_context(path: str | Path) -> ContextFile:
    """Read the plan of a run folder, or a `plan.json`, back; what is damaged or no context plan is refused."""
    file = Path(path) / PLAN if Path(path).is_dir() else Path(path)
    try:
        if plain(file).stat().st_size > LARGEST:
            raise ValueError("it is too large")
        content = json.loads(file.read_text(encoding="utf-8"))
        kind = content.pop("plan")
        scalings = {str(name): _scaling(str(name), said) for name, said in content.pop("scalings").items()}
        found = ContextFile(**content, scalings=scalings)
        _check(found)
    except FileNotFoundError as missing:
        raise RunError(f"{file} is not there: give the folder of a context plan, or its {PLAN}") from missing
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as damage:
        reason = f"{type(damage).__name__}: {damage}"
        raise RunError(
            f"{file} is no context plan, or it is damaged ({reason}); make the plan again"
        ) from damage
    if kind != "context":
        raise RunError(f"{file} is a plan of another kind ('{kind}'), not of contexts")
    return found


def _scaling(name: str, said: dict[str, Any]) -> RopeScaling:
    found = RopeScaling(name, **said)
    rope, most = found.rope_parameters, found.max_position_embeddings
    if not isinstance(rope, dict) or not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise ValueError(f"the scaling '{name}' is none")
    numbers = [value for key, value in rope.items() if key != "rope_type"]
    if not isinstance(rope["rope_type"], str) or any(not isinstance(one, (int, float)) for one in numbers):
        raise ValueError(f"the scaling '{name}' is none")
    if any(not 0 < one < float("inf") for one in numbers):
        raise ValueError(f"the scaling '{name}' has numbers that no scaling has")
    return found


def _check(found: ContextFile) -> None:
    words = (found.model, found.fingerprint, found.optimised, found.why)
    if not all(isinstance(word, str) for word in words):
        raise ValueError("names are missing")
    if not all(isinstance(n, int) and n > 0 for n in (found.trained, found.to)):
        raise ValueError("lengths are missing")
    if found.recommended is not None and found.recommended not in found.scalings:
        raise ValueError(f"'{found.recommended}' is not among its scalings")


def scale(model: Any, plan: ContextFile | ContextPlan | str | Path, scaling: str | None = None) -> Subject:
    """The model under the scaling that a plan recommends, or under another one of the plan: same weights, other angles.

    A plan of another model is refused, and so is one that recommends nothing unless you name a `scaling`. The model itself is left
    as it was.
    """
    subject = load(model)
    if isinstance(plan, ContextPlan):
        plan = ContextFile.of(plan)
    elif not isinstance(plan, ContextFile):
        plan = load_context(plan)
    if plan.fingerprint != subject.fingerprint:
        raise RunError(
            f"the plan was made for {plan.model} ({plan.fingerprint}), and this model is another one ({subject.fingerprint}): make "
            "a plan of its own"
        )
    chosen = scaling or plan.recommended
    if chosen is None:
        raise RunError(
            f"the plan recommends no scaling ({plan.why}): name one of {', '.join(plan.scalings)} if you want it all the same"
        )
    if chosen not in plan.scalings:
        raise RunError(f"the plan has no scaling '{chosen}'; it has {', '.join(plan.scalings)}")
    check_scalable(subject.model)
    return subject if chosen == AS_IT_IS else scaled(subject, plan.scalings[chosen], plan.to)
