"""Questions put to a subject."""

from rotoscope.analysis.profiling import profile

__all__ = ["profile"]
