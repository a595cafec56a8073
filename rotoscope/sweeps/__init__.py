"""A sweep: a grid of settings, each item of it an ordinary run, and one table over all of them."""

from rotoscope.results.sweep import Sweep
from rotoscope.sweeps.driver import run_sweep
from rotoscope.sweeps.file import SweepFile, read_file
from rotoscope.sweeps.items import Item, items_of

__all__ = ["Item", "Sweep", "SweepFile", "items_of", "read_file", "run_sweep"]
