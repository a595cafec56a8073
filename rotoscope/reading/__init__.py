"""Taking queries, keys and rotation out of a running model; loading the model in the first place."""

from rotoscope.reading.gates import Gate, gated, silence
from rotoscope.reading.heads import HeadReader, LayerHeads, QueryHeads
from rotoscope.reading.loading import EMBEDDED, load
from rotoscope.reading.subject import Subject

__all__ = [
    "EMBEDDED",
    "Gate",
    "HeadReader",
    "LayerHeads",
    "QueryHeads",
    "Subject",
    "gated",
    "load",
    "silence",
]
