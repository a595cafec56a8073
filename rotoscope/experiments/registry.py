"""Every experiment, declared once.

A folder of `rotoscope.experiments` declares its question in its `__init__.py` as `EXPERIMENT`. The command with its flags, settings
files and environment variables, `rs.open`, the figures, the page, the list of runs, sweeps and the command reference are all made
from these declarations. Another package adds its own through the entry-point group `rotoscope.experiments`:

    [project.entry-points."rotoscope.experiments"]
    induction = "my_package.induction:EXPERIMENT"

Declarations name functions and classes as text, "module:name", so that `rotoscope --help` imports no torch. A module without a dot
lies in the declaring package, an empty one is that package itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from rotoscope.errors import RunError
from rotoscope.lazy import resolve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rotoscope.runs.result import SavedRun

BUILT_IN = (
    "rotoscope.experiments.profile:EXPERIMENT",
    "rotoscope.experiments.depths:EXPERIMENT",
    "rotoscope.experiments.gate:EXPERIMENT",
    "rotoscope.experiments.plan:EXPERIMENT",
    "rotoscope.experiments.theory:EXPERIMENT",
    "rotoscope.experiments.canonical:EXPERIMENT",
    "rotoscope.experiments.train:EXPERIMENT",
    "rotoscope.experiments.train:DYNAMICS",
    "rotoscope.experiments.lengths:EXPERIMENT",
    "rotoscope.experiments.ask:EXPERIMENT",
    "rotoscope.sweeps:EXPERIMENT",
    "rotoscope.ledger:EXPERIMENT",
)
"""Where experiments are declared, in the order of `rotoscope --help`."""
GROUP = "rotoscope.experiments"
"""The entry-point group in which other packages name their declarations."""


@dataclass(frozen=True)
class ResultKind:
    """A kind of run that an experiment makes."""

    name: str
    """As `run.json` says it."""
    result: str
    """Its class, a `SavedRun`."""
    title: str = "{name}"
    """Of its page; {name} is the model's name, {task} the task."""
    figures: str = ""
    """A function that takes the run and yields (file name, figure) pairs."""
    tabs: Mapping[str, str] = field(default_factory=dict)
    """Tabs of its page: functions that take a `PageRun` and return what the page's script draws, or None."""
    tabled: tuple[str, ...] = ()
    """Stored tables that a tab shows; all others are listed among the tables."""
    so_far: str = ""
    """A function that takes the folder and the record of an unfinished run and returns (tables, warnings)."""
    comparison: str = ""
    """A class whose `of(page_run)` keeps what a comparison needs and whose `beside(other)` compares two runs."""
    picture: str = ""
    """The figure that stands for a run in a list."""
    classes: str = ""
    """The table in which the list of runs counts heads by class."""
    accuracy: str = "answers"
    """The table in which it finds the accuracy."""
    by_step: bool = False
    """Whether both are those of the last step of a training."""


@dataclass(frozen=True)
class PromptChoice:
    """What an experiment shows a model, where its command makes the prompts."""

    task: str = "binding"
    """For a model without a task of its own."""
    sizes: Mapping[str, Any] = field(default_factory=dict)
    """Where they differ from those of `PromptSettings`."""
    without: tuple[str, ...] = ()
    """Fields of `PromptSettings` that mean nothing here."""


@dataclass(frozen=True, eq=False)
class Experiment:
    """A question that can be put to a model."""

    name: str
    """Of its command."""
    question: str
    kinds: tuple[ResultKind, ...] = ()
    example: str = ""
    """A command line."""
    about: str = ""
    """What `--help` says below the question and the example."""
    settings: str = ""
    """A `Settings` class; its fields are the flags."""
    run: str = ""
    """A function run(subject, prompts, settings, *, seed, out, overwrite) that returns a result."""
    prompts: PromptChoice = PromptChoice()
    command: str = ""
    """A command function, for an experiment that is not a model and prompts. Empty: made from `settings` and `run`."""
    sweepable: bool = True
    """Whether `rotoscope sweep` can make runs of it."""
    package: str = ""
    """The declaring module; filled in by the registry."""

    def resolve(self, path: str) -> Any:
        """The object that a path of this declaration names."""
        return resolve(_absolute(path, self.package))


def _absolute(path: str, package: str) -> str:
    """A path of a declaration with its module in full."""
    module, _, name = path.partition(":")
    if "." in module or not path:
        return path
    return f"{package}.{module}:{name}" if module else f"{package}:{name}"


def experiments() -> dict[str, Experiment]:
    """Every experiment by its name."""
    return _loaded()[0]


def problems() -> list[str]:
    """Why an installed experiment is missing, a sentence each."""
    return _loaded()[1]


@cache
def _loaded() -> tuple[dict[str, Experiment], list[str]]:
    declared: dict[str, Experiment] = {}
    failures: list[str] = []
    for path in BUILT_IN:
        experiment: Experiment = resolve(path)
        declared[experiment.name] = replace(experiment, package=path.partition(":")[0])
    for entry in entry_points(group=GROUP):
        try:
            experiment = entry.load()
            if not isinstance(experiment, Experiment):
                raise TypeError(f"{entry.value} is no Experiment")
            if experiment.name in declared:
                raise ValueError(f"there is an experiment '{experiment.name}' already")
        except Exception as problem:  # somebody else's module may raise anything
            reason = " ".join(str(problem).split()) or type(problem).__name__
            failures.append(f"the experiment '{entry.name}' ({entry.value}) is left out: {reason}")
        else:
            declared[experiment.name] = replace(experiment, package=entry.module)
    return declared, failures


def load_again() -> None:
    """Look again for what is installed."""
    _loaded.cache_clear()


def result_kinds() -> dict[str, tuple[Experiment, ResultKind]]:
    """Every kind of run by its name, with the experiment that makes it."""
    return {kind.name: (each, kind) for each in experiments().values() for kind in each.kinds}


def kind_declaration(name: str) -> ResultKind | None:
    """The declaration of a kind of run, with absolute paths; None for a kind that this version does not know."""
    if name not in result_kinds():
        return None
    experiment, kind = result_kinds()[name]
    paths = {
        key: _absolute(getattr(kind, key), experiment.package)
        for key in ("result", "figures", "so_far", "comparison")
    }
    tabs = {tab: _absolute(path, experiment.package) for tab, path in kind.tabs.items()}
    return replace(kind, tabs=tabs, **paths)  # type: ignore[arg-type]


def result_class(kind: str) -> type[SavedRun] | None:
    """The class of a kind of run; None for a kind that this version does not know."""
    declaration = kind_declaration(kind)
    return None if declaration is None else resolve(declaration.result)


def figures_of(run: SavedRun, **options: Any) -> Iterator[tuple[str, Figure]]:
    """The figures of a run of any kind with the names of their files; none where there is nothing to draw."""
    declaration = kind_declaration(run.kind)
    if declaration is not None and declaration.figures:
        draw: Callable[..., Iterator[tuple[str, Figure]]] = resolve(declaration.figures)
        yield from draw(run, **options)


R = TypeVar("R", bound="SavedRun")


@overload
def open(path: str | Path, kind: type[R]) -> R: ...
@overload
def open(path: str | Path, kind: None = None) -> Any: ...
def open(path: str | Path, kind: type[SavedRun] | None = None) -> Any:
    """Open a run folder of any kind: what comes back is a `Profile`, `Lengths`, `Training`, ... with all its tables.

    Where a `kind` is named, a run of another is refused, and type checkers know what comes back.
    """
    from rotoscope.runs.record import RunRecord

    name = RunRecord.read(Path(path)).kind
    result = kind or result_class(name)
    if result is None:
        raise RunError(f"{path} holds a run of kind '{name}', which this version of rotoscope does not know")
    opened = result.open(path)
    opened.run.note_versions()
    return opened
