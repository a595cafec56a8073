"""Single entries of the counterfactual logit matrix, against the whole of it."""

import pytest
import torch

from rotoscope.models.layer import LayerHeads
from rotoscope.models.reader import HeadReader
from rotoscope.scores import counterfactual as factors
from tests.tiny_models import tiny, tokens


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_neox"])
def test_entries_are_those_of_the_matrix_however_few(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few are formed one by one, many out of the whole matrix, in between in parts; soft-caps, windows and what does not
    rotate included."""
    monkeypatch.setattr(factors, "ROOM", 16 * 2 * 4 * 16 * 4)
    layers: list[LayerHeads] = []
    HeadReader(tiny(name)).read(tokens(2, 24), (23,), lambda layer: layers.append(layer.at(0)))
    for query in layers:
        whole = query.logits()
        n, d = query.keys.shape[2:]
        torch.manual_seed(0)
        for entries in (3, 11, n * n // d + 1):
            positions, contents = torch.randint(n, (2, query.heads, entries))
            found = query.entries(positions, contents)
            expected = whole[:, torch.arange(query.heads)[:, None], positions, contents]
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
