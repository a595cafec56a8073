"""Shape annotations: jaxtyping where it is installed (tests), plain tensors elsewhere.

Signatures name their axes, `Float[Tensor, "... positions contents"]`. The test suite checks them at
run time; a user who installs only the core never pays for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

__all__ = ["Bool", "Float", "Int", "Tensor"]

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:

        class _Unchecked:
            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Bool = Float = Int = _Unchecked
