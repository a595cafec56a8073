"""A sweep: a grid of settings, each item of it an ordinary run, and one table over all of them."""

from typing import TYPE_CHECKING

from rotoscope.experiments.registry import Experiment, ResultKind
from rotoscope.lazy import attach

if TYPE_CHECKING:
    from rotoscope.sweeps.driver import run_sweep as run_sweep
    from rotoscope.sweeps.items import Item as Item
    from rotoscope.sweeps.items import SweepFile as SweepFile
    from rotoscope.sweeps.items import items_of as items_of
    from rotoscope.sweeps.items import read_file as read_file
    from rotoscope.sweeps.result import Sweep as Sweep
    from rotoscope.sweeps.settings import SweepSettings as SweepSettings

__getattr__, __dir__, __all__ = attach(__name__, __file__)

EXPERIMENT = Experiment(
    name="sweep",
    question="What does every item of a grid of settings give?",
    command="command:sweep",
    sweepable=False,
    kinds=(
        ResultKind(
            name="sweep",
            result="result:Sweep",
            title="The sweep {name}",
            tabs={"tables": "page:sweep_tab"},
            tabled=("items", "heads", "classes"),
            so_far="page:items_so_far",
        ),
    ),
)
