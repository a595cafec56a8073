"""Taking queries, keys and rotation out of a running model; loading the model in the first place."""

from rotoscope.reading.checkpoints import find_checkpoints
from rotoscope.reading.depth import Depths
from rotoscope.reading.gates import Gate, gated, silence
from rotoscope.reading.heads import HeadReader
from rotoscope.reading.layer import LayerHeads, QueryHeads
from rotoscope.reading.loading import EMBEDDED, OWN, load, own_model
from rotoscope.reading.subject import Subject

__all__ = [
    "EMBEDDED",
    "OWN",
    "Depths",
    "Gate",
    "HeadReader",
    "LayerHeads",
    "QueryHeads",
    "Subject",
    "find_checkpoints",
    "gated",
    "load",
    "own_model",
    "silence",
]
