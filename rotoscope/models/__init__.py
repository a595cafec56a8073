"""Taking queries, keys and rotation out of a running model; loading the model in the first place."""

from rotoscope.models.hub import find_checkpoints
from rotoscope.models.interventions import Gate, gated, silence
from rotoscope.models.layer import LayerHeads, LayerReading
from rotoscope.models.loading import load
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Depths
from rotoscope.models.subject import Subject
from rotoscope.models.zoo import OWN, ZOO, ZooModel, own_model

__all__ = [
    "OWN",
    "ZOO",
    "Depths",
    "Gate",
    "HeadReader",
    "LayerHeads",
    "LayerReading",
    "Subject",
    "ZooModel",
    "find_checkpoints",
    "gated",
    "load",
    "own_model",
    "silence",
]
