import math

import pytest

import rotoscope as rs


@pytest.mark.parametrize(
    ("positional", "symbolic", "expected"),
    [
        (0.95, 0.05, "positional"),
        (0.9, 0.1, "positional"),
        (0.05, 0.95, "symbolic"),
        (0.93, 0.99, "uniform"),
        (0.95, 0.5, "mixed"),
        (0.5, 0.5, "mixed"),
        (0.0, 0.0, "mixed"),
        (math.nan, 0.5, None),
    ],
)
def test_classes(positional: float, symbolic: float, expected: str | None) -> None:
    assert rs.purity_class(positional, symbolic, 0.1) == expected


def test_gamma_decides() -> None:
    assert rs.purity_class(0.93, 0.07, 0.1) == "positional"
    assert rs.purity_class(0.93, 0.07, 0.05) == "mixed"
    with pytest.raises(rs.RotoscopeError, match="gamma"):
        rs.purity_class(1.0, 0.0, 0.6)
