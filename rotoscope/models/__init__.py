"""Taking queries, keys and rotation out of a running model; loading the model in the first place."""

from rotoscope.models.checkpoints import find_checkpoints
from rotoscope.models.gate import Gate, gated, silence
from rotoscope.models.layer import LayerHeads, LayerReading
from rotoscope.models.loading import EMBEDDED, OWN, Subject, load, own_model
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Depths

__all__ = [
    "EMBEDDED",
    "OWN",
    "Depths",
    "Gate",
    "HeadReader",
    "LayerHeads",
    "LayerReading",
    "Subject",
    "find_checkpoints",
    "gated",
    "load",
    "own_model",
    "silence",
]
