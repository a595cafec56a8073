"""A context plan as a file, and a model under the scaling that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rotoscope.analysis.plan.plan_file import PLAN as PLAN
from rotoscope.analysis.plan.plan_file import is_number, read_plan_file, write_plan_file
from rotoscope.errors import RunError
from rotoscope.reading import Subject, load
from rotoscope.reading.scaled import RopeScaling, check_scalable, check_scaling, scaled
from rotoscope.reading.streaming import check_as_made
from rotoscope.results.context_plan import AS_IT_IS, ContextPlan

CONTEXT = "context"
LARGEST = 1e30
"""No number of a scaling is larger, the base of the angles included."""


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
        write_plan_file(path, CONTEXT, {**vars(self), "scalings": said})


def load_context(path: str | Path) -> ContextFile:
    """Read the plan of a run folder, or a `plan.json`, back; what is damaged or no context plan is refused."""
    return read_plan_file(path, CONTEXT, _whole)


def _whole(content: dict[str, Any]) -> ContextFile:
    """The plan, if nothing of it is missing and it could be one."""
    scalings = {str(name): _scaling(str(name), said) for name, said in content.pop("scalings").items()}
    found = ContextFile(**content, scalings=scalings)
    words = (found.model, found.fingerprint, found.optimised, found.why)
    if not all(isinstance(word, str) for word in words):
        raise ValueError("names are missing")
    if not is_number(found.trained, 1) or not is_number(found.to, 1):
        raise ValueError("lengths are missing")
    if found.recommended is not None and found.recommended not in found.scalings:
        raise ValueError(f"'{found.recommended}' is not among its scalings")
    return found


def _scaling(name: str, said: dict[str, Any]) -> RopeScaling:
    found = RopeScaling(name, **said)
    rope = found.rope_parameters
    if not isinstance(rope, dict) or not is_number(found.max_position_embeddings, 1):
        raise ValueError(f"the scaling '{name}' is none")
    numbers = [value for key, value in rope.items() if key != "rope_type"]
    whole = all(isinstance(one, int | float) and not isinstance(one, bool) for one in numbers)
    if not isinstance(rope.get("rope_type"), str) or not whole:
        raise ValueError(f"the scaling '{name}' is none")
    if any(not 0 < one < LARGEST for one in numbers):
        raise ValueError(f"the scaling '{name}' has numbers that no scaling has")
    return found


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
    if chosen == AS_IT_IS:
        return subject
    check_as_made(subject.model, "its angles are scaled")
    check_scaling(subject.model, plan.scalings[chosen])
    return scaled(subject, plan.scalings[chosen], plan.to)
