"""Settings are types: a function's keywords, a command's flags, the settings file, the environment and `run.json`
all come from them. Nothing heavy is imported here, so that `rotoscope --help` answers at once."""

from rotoscope.settings.ask import AskSettings as AskSettings
from rotoscope.settings.base import Settings as Settings
from rotoscope.settings.canonical import CanonicalSettings as CanonicalSettings
from rotoscope.settings.canonical import ToyTraining as ToyTraining
from rotoscope.settings.depths import DepthsSettings as DepthsSettings
from rotoscope.settings.gate import GateSettings as GateSettings
from rotoscope.settings.lengths import LengthsSettings as LengthsSettings
from rotoscope.settings.model import ModelSettings as ModelSettings
from rotoscope.settings.output import Output as Output
from rotoscope.settings.plan import PlanSettings as PlanSettings
from rotoscope.settings.plan_cache import CacheSettings as CacheSettings
from rotoscope.settings.plan_rotation import RotationSettings as RotationSettings
from rotoscope.settings.profile import ProfileSettings as ProfileSettings
from rotoscope.settings.prompts import PromptSettings as PromptSettings
from rotoscope.settings.series import SeriesSettings as SeriesSettings
from rotoscope.settings.sweep import SweepSettings as SweepSettings
from rotoscope.settings.tau import check_tau as check_tau
from rotoscope.settings.train import TrainSettings as TrainSettings
from rotoscope.settings.train import WatchSettings as WatchSettings
