"""Questions put to a subject."""

from rotoscope.analysis.profile import profile

__all__ = ["profile"]
