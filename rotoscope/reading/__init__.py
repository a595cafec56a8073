"""Taking queries, keys and rotation out of a running model; loading the model in the first place."""

from rotoscope.reading.heads import HeadReader, LayerHeads, QueryHeads
from rotoscope.reading.loading import EMBEDDED, load
from rotoscope.reading.subject import Subject

__all__ = ["EMBEDDED", "HeadReader", "LayerHeads", "QueryHeads", "Subject", "load"]
