"""Models we train ourselves."""

from rotoscope.lab.toy import ToyHeads, ToySettings

__all__ = ["ToyHeads", "ToySettings"]
