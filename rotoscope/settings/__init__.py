"""Settings are types: a function's keywords, a command's flags, the settings file, the environment and `run.json`
all come from them. Nothing heavy is imported here, so that `rotoscope --help` answers at once."""

from rotoscope.settings.ask import AskSettings
from rotoscope.settings.base import Settings
from rotoscope.settings.canonical import CanonicalSettings, ToyTraining
from rotoscope.settings.gate import GateSettings
from rotoscope.settings.lengths import LengthsSettings
from rotoscope.settings.model import ModelSettings
from rotoscope.settings.output import Output
from rotoscope.settings.profile import ProfileSettings, check_tau
from rotoscope.settings.prompts import PromptSettings
from rotoscope.settings.train import TrainSettings, WatchSettings

__all__ = [
    "AskSettings",
    "CanonicalSettings",
    "GateSettings",
    "LengthsSettings",
    "ModelSettings",
    "Output",
    "ProfileSettings",
    "PromptSettings",
    "Settings",
    "ToyTraining",
    "TrainSettings",
    "WatchSettings",
    "check_tau",
]
