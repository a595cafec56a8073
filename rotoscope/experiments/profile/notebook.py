"""A profile at the end of a notebook cell: a few figures and the plane, without any script."""

from __future__ import annotations

import base64
import gzip
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rotoscope.errors import RotoscopeError, TooLargeError
from rotoscope.experiments.profile.screen import with_missing_caveats
from rotoscope.plotting.palette import CLASS_COLOURS

if TYPE_CHECKING:
    import pandas as pd

    from rotoscope.experiments.profile.result import Profile

FRAME = (
    '<iframe srcdoc="{document}" sandbox="allow-scripts allow-downloads" width="100%" height="{height}" '
    'style="border:0" title="rotoscope report"></iframe>'
)
UNPACK = """<script>
const bytes = Uint8Array.from(atob("{packed}"), (letter) => letter.charCodeAt(0));
new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text().then((page) => {{
  document.open(); document.write(page); document.close();
}});
</script>"""
"""The page is packed, so that a notebook with it stays small; the frame unpacks it when it is shown."""


HEIGHT, MOST_MB = 720, 3.0
"""Pixels of the frame, and most that the page may add to a notebook unless more is asked for."""


class Frame:
    """HTML that a notebook shows as it is."""

    def __init__(self, html: str) -> None:
        self.html = html

    def _repr_html_(self) -> str:
        return self.html


def notebook_frame(profile: Profile, height: int, most_mb: float | None) -> Frame:
    """The page of a profile in an isolated frame; nothing is fetched from anywhere."""
    with TemporaryDirectory() as folder:
        page = profile.report(Path(folder) / "page.html").read_bytes()
    packed = base64.b64encode(gzip.compress(page, 9, mtime=0)).decode("ascii")
    frame = FRAME.format(document=escape(UNPACK.format(packed=packed)), height=height)
    if most_mb is not None and len(frame) > most_mb * 1e6:
        raise TooLargeError(
            f"the page would add {len(frame) / 1e6:.1f} MB to the notebook, more than {most_mb:g}: profile.show(most_mb=None) "
            'shows it all the same, profile.report("page.html") writes it to a file'
        )
    return Frame(frame)


def notebook_html(profile: Profile) -> str:
    """The page of a profile; where it cannot be made or is too large, the small plane and how to get the page."""
    try:
        return notebook_frame(profile, HEIGHT, MOST_MB).html
    except RotoscopeError as problem:
        return f"{profile_html(profile)}<p>{escape(str(problem))}</p>"


SIDE, EDGE = 200, 24
MOST_POINTS = 1500


def profile_html(profile: Profile) -> str:
    """Counts by class, correlation, warnings, and a small plane."""
    heads = profile.at()
    summary = profile.summary()
    r = "undefined" if summary.correlation is None else f"{summary.correlation:.2f}"
    counts = ", ".join(
        f'<span style="color:{CLASS_COLOURS[name]}">●</span> {words}' for name, words in summary.counted.items()
    )
    prompts = profile.prompts["prompt"].nunique()
    noted = with_missing_caveats(profile.run.warnings, profile.null_name, heads)
    listed = "".join(f"<li>{escape(caveat)}</li>" for caveat in noted)
    return (
        '<div style="display:flex;gap:1.5em;align-items:flex-start;flex-wrap:wrap">'
        f"{_plane(heads)}"
        '<div style="max-width:36em">'
        f"<b>{escape(profile.name)}</b>: {summary.heads} heads, {prompts} prompts, "
        f"τ = {profile.taus[0]:g}, γ = {profile.gamma:g}"
        f"<br>{counts}<br>{summary.stake_words}<br>correlation of the two scores: {r}"
        f"<ul>{listed}</ul>"
        "</div></div>"
    )


def _plane(heads: pd.DataFrame) -> str:
    """One point per head, as SVG; very many heads are thinned evenly."""
    scored = heads.dropna(subset=["positional_score", "symbolic_score"])
    scored = scored.iloc[:: max(1, -(-len(scored) // MOST_POINTS))]
    places = zip(scored["positional_score"], scored["symbolic_score"], scored["head_class"], strict=True)
    points = "".join(
        f'<circle cx="{EDGE + SIDE * p:.1f}" cy="{8 + SIDE * (1 - s):.1f}" r="2.6" '
        f'fill="{CLASS_COLOURS[name]}" fill-opacity="0.75"/>'
        for p, s, name in places
        if name in CLASS_COLOURS
    )
    low, words = 8 + SIDE, 'font-size="11" font-family="sans-serif" fill="currentColor"'
    return (
        f'<svg width="{SIDE + EDGE + 8}" height="{SIDE + 32}" role="img" '
        'aria-label="positional-symbolic plane">'
        f'<rect x="{EDGE}" y="8" width="{SIDE}" height="{SIDE}" fill="none" stroke="currentColor" '
        'stroke-opacity="0.4"/>'
        f'{points}<text x="{EDGE}" y="{low + 16}" {words}>positional score →</text>'
        f'<text transform="translate(14 {low}) rotate(-90)" {words}>symbolic score →</text></svg>'
    )
