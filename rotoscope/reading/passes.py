"""What the layers of one pass through a model have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rotoscope.reading.layer import Rotation
from rotoscope.reading.layout import Layout
from rotoscope.reading.sites import Call, Site, visible_under
from rotoscope.shapes import Tensor


class Pass:
    """What the layers of one pass have in common, made once: the queries, masks and rotation tables."""

    def __init__(self, queries: Sequence[int]) -> None:
        self.queries = tuple(queries)
        self._made: dict[Any, Any] = {}

    def rows(self, device: torch.device) -> Tensor:
        """The positions of the queries."""
        return self._once(device, lambda: torch.tensor(self.queries, dtype=torch.long, device=device))

    def order(self, layout: Layout, device: torch.device) -> Tensor:
        """The dimensions of a head by plane."""
        return self._once((id(layout), device), lambda: layout.order.to(device))

    def visible(
        self, mask: Any, n: int, device: torch.device, both_ways: bool
    ) -> tuple[Tensor, tuple[bool, ...]]:
        """What the queries may see under a mask, and which of them may not see all that comes before them."""

        def look() -> Any:
            seen = visible_under(mask, self.rows(device), n, both_ways=both_ways).to(device)
            if mask is None:
                return mask, seen, (False,) * len(self.queries)
            later = torch.arange(n, device=device) > self.rows(device)[:, None]
            return mask, seen, tuple(not all_seen for all_seen in (seen | later).all(1).tolist())

        # The mask is kept, so its id stays its own.
        return self._once(("mask", id(mask), device, both_ways), look)[1:]

    def looked_at(self, visible: Tensor) -> tuple[Tensor, tuple[bool, ...]]:
        """The same of what is known already, from a prompt in parts; layers that see the same share it."""
        known: list[Any] = self._once("looked at", list)
        for seen, hides in known:
            if torch.equal(seen, visible):
                return seen, hides
        later = torch.arange(visible.shape[1], device=visible.device) > self.rows(visible.device)[:, None]
        known.append((visible, tuple(not every for every in (visible | later).all(1).tolist())))
        return known[-1]  # type: ignore[no-any-return]

    def tables_in_parts(self, parts: Sequence[tuple[Tensor, Tensor]], layout: Layout) -> Rotation:
        """The model's tables for a layer, from those of the parts of a prompt."""

        def table() -> Any:
            columns = layout.columns.to(parts[0][0].device)
            cos, sin = (torch.cat([part[k][:, columns] for part in parts]) for k in range(2))
            return tuple(parts), Rotation(cos, sin)

        return self._once((tuple(cos.data_ptr() for cos, _ in parts), id(layout)), table)[1]

    def rotation(self, site: Site, call: Call, layout: Layout) -> Rotation:
        """The model's tables for a layer."""
        cos, sin = site.rotation(call)

        def table() -> Any:
            columns = layout.columns.to(cos.device)
            return cos, Rotation(cos[:, columns], sin[:, columns])

        return self._once((cos.data_ptr(), cos.shape, id(layout)), table)[1]

    def _once(self, name: Any, make: Callable[[], Any]) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]
