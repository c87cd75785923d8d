"""The result of a call in float64, PyTorch's usual error, and the effect of a rounding of the operands.

The float64 result alone is not enough. PyTorch's error in one element may be small by chance, and no algorithm finds
all digits of a sum whose terms cancel. So the call is repeated on the CPU with operands that are a rounding away.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .operands import NARROW, WIDE, Dtypes, Nudge

Results = dict[str, list[Any]]

# The numbers of directions in which the operands are moved; the largest effect counts. MANY only if FEW do not decide.
FEW, MANY = 3, 24


class Truth:
    """The results of one call, which takes the dtypes to convert its operands to, and how to move them before.

    No dtype is wider than float64. The scaled distance of float32 from float64 measures the error of float64.
    """

    def __init__(self, call: Callable[[Dtypes, Nudge | None], Results], dtype: torch.dtype) -> None:
        self._call = call
        self._known: list[tuple[Results, Results]] = []
        self._narrow: Dtypes = NARROW if dtype in NARROW else {}
        self._scale = torch.finfo(dtype).eps / torch.finfo(NARROW[dtype]).eps if dtype in NARROW else 1.0

    def value(self, name: str, index: int) -> Tensor | None:
        """The result so called in the wide dtype, or `None` if there is none."""
        return _result(self._exact, name, index)

    def noise(self, name: str, index: int, nudges: int = FEW) -> Tensor | None:
        """Return the largest error of PyTorch's result for nearby operands, for each element, in float64."""
        return self._farthest(name, index, self._nearby(nudges))

    def spread(self, name: str, index: int, nudges: int = FEW) -> Tensor | None:
        """How far the truth moves, at most, when the operands move by a rounding: of each element, in float64."""
        return self._farthest(name, index, [(self._exact, wide) for wide, _ in self._nearby(nudges)])

    def _farthest(self, name: str, index: int, pairs: list[tuple[Results, Results]]) -> Tensor | None:
        exact = self.value(name, index)
        if exact is None:
            return None
        farthest = torch.zeros(exact.shape, dtype=torch.float64)
        for pair in pairs:
            one, other = (_result(results, name, index) for results in pair)
            if one is not None and other is not None and one.shape == other.shape == exact.shape:
                farthest = torch.maximum(farthest, (_wide(one) - _wide(other)).abs().nan_to_num(0, 0))
        return farthest * self._scale

    @functools.cached_property
    def _exact(self) -> Results:
        return self._attempt(WIDE, None)

    def _nearby(self, nudges: int) -> list[tuple[Results, Results]]:
        for seed in range(len(self._known), nudges):
            pair = (self._attempt(dtypes, Nudge(seed, self._narrow)) for dtypes in (WIDE, self._narrow))
            self._known.append((next(pair), next(pair)))
        return self._known[:nudges]

    def _attempt(self, dtypes: Dtypes, nudge: Nudge | None) -> Results:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if dtypes is WIDE else before)
        try:
            return self._call(dtypes, nudge)
        except Exception:
            return {}  # the CPU lacks the wide form, or the operands are no longer in the domain
        finally:
            torch.set_default_dtype(before)


def _result(results: Results, name: str, index: int) -> Tensor | None:
    found = results.get("result" if name == "written" else name, [])
    return found[index] if index < len(found) and isinstance(found[index], Tensor) else None


def _wide(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    tensor = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
