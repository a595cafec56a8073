"""Results in, matplotlib figure out: the papers' figures."""

from rotoscope.errors import RotoscopeError

try:
    import matplotlib as _matplotlib  # noqa: F401
except ImportError as _missing:
    raise RotoscopeError("figures need: pip install 'rotoscope[figures]'") from _missing

from rotoscope.figures.layer_map import layer_map
from rotoscope.figures.plane import plane
from rotoscope.figures.style import CLASS_COLOURS, save_figure

__all__ = ["CLASS_COLOURS", "layer_map", "plane", "save_figure"]
