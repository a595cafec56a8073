"""Colours mean classes and nothing else."""

from rotoscope.plotting import palette

SCORES = set(palette.SCORE_COLOURS.values())


def test_no_task_series_hop_or_kind_wears_the_colour_of_a_class() -> None:
    classes = set(palette.CLASS_COLOURS.values())
    tables = {
        "tasks": palette.TASK_COLOURS.values(),
        "experiments": palette.EXPERIMENT_COLOURS.values(),
        "hops": palette.HOP_COLOURS,
        "series": palette.SERIES,
        "kinds of runs": palette.KIND_COLOURS,
        "a swap": (palette.SWAPPED, palette.BLOCK, palette.QUERY),
        "measures that are no score": [
            colour for name, colour in palette.MEASURE_COLOURS.items() if not name.endswith("_score")
        ],
    }
    for name, colours in tables.items():
        assert not classes & set(colours), name
    assert set(palette.GATE_COLOURS.values()) - {palette.INK} == SCORES  # bands of a score


def test_verdicts_have_words_of_their_own_on_the_page() -> None:
    kinds = set(palette.PAGE_VERDICTS.values())
    assert not kinds & set(palette.CLASS_COLOURS)
    for theme in palette.THEMES.values():
        assert {f"{kind}-text" for kind in kinds} <= set(theme)
