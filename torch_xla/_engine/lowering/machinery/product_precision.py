"""Choose the precision of the products in a rule: the one in force for float32, JAX's own for other dtypes."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import jax
import numpy as np

from ... import precision
from .replica_axis import target_in_use

_FLOAT32 = {np.dtype(np.float32), np.dtype(np.complex64)}

_exporting = threading.local()


@contextmanager
def exported_for(platforms: Iterable[str]) -> Iterator[None]:
    """Lower rules within a `with` block for these platforms, by JAX's names, and not for a target."""
    before = getattr(_exporting, "platform", None)
    named = set(platforms)
    _exporting.platform = named.pop() if len(named) == 1 else None
    try:
        yield
    finally:
        _exporting.platform = before


def precision_of(operands: Iterable[object]) -> AbstractContextManager[None]:
    """Return a block in which products have the precision in force if an operand is float32 or complex64.

    Other products have JAX's default, which for every other dtype is its own precision. A kernel that multiplies
    bfloat16 would be refused by Mosaic with another.
    """
    dtypes = {getattr(each, "dtype", None) for each in operands}
    if dtypes.isdisjoint(_FLOAT32):
        return jax.default_matmul_precision(None)
    target = target_in_use()
    platform = target.platform if target is not None else getattr(_exporting, "platform", None)
    return jax.default_matmul_precision(precision.on_platform(platform))
