"""Make tensors from numbers: fills, ranges, the identity, triangle indices; windows are in `windows.py`."""

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ... import dtypes
from ..machinery.cast import cast
from ..machinery.opmath import number_as, quotient
from ..machinery.registry import lowers

aten = torch.ops.aten

INT64 = np.dtype(np.int64)


def default_dtype() -> np.dtype:
    """Return PyTorch's default dtype as JAX's."""
    return dtypes.to_jax(torch.get_default_dtype())


def _dtype_or_default(dtype: torch.dtype | None) -> np.dtype:
    return default_dtype() if dtype is None else dtypes.to_jax(dtype)


def _dtype_of_numbers(*numbers: Any) -> np.dtype:
    """Return the dtype of a tensor made from these numbers, or from zero-dim arrays."""
    kinds = (int if jax.export.is_symbolic_dim(n) else getattr(n, "dtype", type(n)) for n in numbers)
    found = {np.dtype(kind).kind for kind in kinds}  # NumPy has no common dtype for bfloat16 and float16
    if "c" in found:
        return np.result_type(default_dtype(), np.complex64)
    if not found <= set("biu"):
        return default_dtype()
    return np.dtype(np.bool_) if found == {"b"} else INT64


def _filled(shape: Sequence[int], number: object, dtype: np.dtype) -> jax.Array:
    return jnp.broadcast_to(number_as(number, dtype), tuple(shape))


@lowers(aten.full.default)
def full(size: Sequence[int], fill_value: object, *, dtype: torch.dtype | None = None) -> jax.Array:
    return _filled(size, fill_value, _dtype_of_numbers(fill_value) if dtype is None else dtypes.to_jax(dtype))


@lowers(aten.zeros.default)
def zeros(size: Sequence[int], *, dtype: torch.dtype | None = None) -> jax.Array:
    return _filled(size, 0, _dtype_or_default(dtype))


@lowers(aten.ones.default)
def ones(size: Sequence[int], *, dtype: torch.dtype | None = None) -> jax.Array:
    return _filled(size, 1, _dtype_or_default(dtype))


@lowers(aten.new_full.default)
def new_full(
    self: jax.Array, size: Sequence[int], fill_value: object, *, dtype: torch.dtype | None = None
) -> jax.Array:
    return _filled(size, fill_value, self.dtype if dtype is None else dtypes.to_jax(dtype))


@lowers(aten.new_zeros.default)
def new_zeros(self: jax.Array, size: Sequence[int], *, dtype: torch.dtype | None = None) -> jax.Array:
    return new_full(self, size, 0, dtype=dtype)


@lowers(aten.new_ones.default)
def new_ones(self: jax.Array, size: Sequence[int], *, dtype: torch.dtype | None = None) -> jax.Array:
    return new_full(self, size, 1, dtype=dtype)


@lowers(aten.full_like.default)
def full_like(self: jax.Array, fill_value: object, *, dtype: torch.dtype | None = None) -> jax.Array:
    return new_full(self, self.shape, fill_value, dtype=dtype)


@lowers(aten.zeros_like.default)
def zeros_like(self: jax.Array, *, dtype: torch.dtype | None = None) -> jax.Array:
    return new_full(self, self.shape, 0, dtype=dtype)


@lowers(aten.ones_like.default)
def ones_like(self: jax.Array, *, dtype: torch.dtype | None = None) -> jax.Array:
    return new_full(self, self.shape, 1, dtype=dtype)


@lowers(aten.fill.Scalar)
def fill(self: jax.Array, value: object) -> jax.Array:
    return _filled(self.shape, value, self.dtype)


@lowers(aten.fill.Tensor)
def fill_with_array(self: jax.Array, value: jax.Array) -> jax.Array:
    return jnp.broadcast_to(cast(value, self.dtype), self.shape)


@lowers(aten.zero.default)
def zero(self: jax.Array) -> jax.Array:
    return _filled(self.shape, 0, self.dtype)


@lowers(aten.scalar_tensor.default)
def scalar_tensor(s: object, *, dtype: torch.dtype | None = None) -> jax.Array:
    # The default is the default float dtype, for an integer as well.
    return _filled((), s, _dtype_or_default(dtype))


@lowers(aten.arange.default)
def arange(end: object, *, dtype: torch.dtype | None = None) -> jax.Array:
    return arange_with_step(0, end, 1, dtype=dtype)


@lowers(aten.arange.start)
def arange_from(start: object, end: object, *, dtype: torch.dtype | None = None) -> jax.Array:
    return arange_with_step(start, end, 1, dtype=dtype)


@lowers(aten.arange.start_step)
def arange_with_step(start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None) -> jax.Array:
    result = _dtype_of_numbers(start, end, step) if dtype is None else dtypes.to_jax(dtype)
    result = INT64 if result == np.bool_ else result
    sizes = [jax.export.is_symbolic_dim(number) for number in (start, end, step)]
    if any(sizes):
        first, last, by = (n if size else int(n) for n, size in zip((start, end, step), sizes, strict=True))
        length = -((first - last) // by)
    elif result == INT64:
        # For this dtype alone PyTorch before 2.15 truncates the numbers before it counts.
        length = len(torch.arange(start, end, step, dtype=torch.int64, device="meta"))
    else:
        length = math.ceil((float(end) - float(start)) / float(step))
    return _progression(start, step, length, result)


@lowers(aten.range.default)
def range_inclusive(start: jax.Array | float, end: jax.Array | float, *, dtype: torch.dtype | None = None) -> jax.Array:
    return range_with_step(start, end, 1, dtype=dtype)


@lowers(aten.range.step)
def range_with_step(
    start: jax.Array | float, end: jax.Array | float, step: jax.Array | float = 1, *, dtype: torch.dtype | None = None
) -> jax.Array:
    result = _dtype_or_default(dtype)
    # PyTorch rounds the numbers to some dtypes before it counts.
    count = len(torch.ops.aten.range.step(start, end, step, dtype=dtypes.to_torch(result), device="meta"))
    return _progression(start, step, count, result)


def _progression(start: object, step: object, length: int, dtype: np.dtype) -> jax.Array:
    """Return start, start + step, ..., computed in 64 bits where PyTorch does on the CPU."""
    wide = np.dtype(np.float64) if jnp.issubdtype(dtype, jnp.floating) else INT64
    return (number_as(start, wide) + number_as(step, wide) * lax.iota(wide, length)).astype(dtype)


@lowers(aten.linspace.default, aten.linspace.Tensor_Tensor, aten.linspace.Tensor_Scalar, aten.linspace.Scalar_Tensor)
def linspace(start: object, end: object, steps: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    result = _dtype_of_space(start, end) if dtype is None else dtypes.to_jax(dtype)
    return jnp.asarray(_spaced(start, end, steps, result, _module_for(start, end, steps, result)).astype(result))


@lowers(aten.logspace.default, aten.logspace.Tensor_Tensor, aten.logspace.Tensor_Scalar, aten.logspace.Scalar_Tensor)
def logspace(
    start: object, end: object, steps: int, base: object = 10.0, *, dtype: torch.dtype | None = None
) -> jax.Array:
    result = _dtype_of_space(start, end) if dtype is None else dtypes.to_jax(dtype)
    module = _module_for(start, end, steps, result)
    exponents = _spaced(start, end, steps, result, module)
    return jnp.asarray(module.power(number_as(base, exponents.dtype), exponents).astype(result))


def _dtype_of_space(start: object, end: object) -> np.dtype:
    return np.result_type(_dtype_of_numbers(start, end), default_dtype())


# Beyond as many numbers they are no constant of a program.
_MOST_COMPUTED = 1 << 20


def _module_for(start: Any, stop: Any, steps: int, dtype: np.dtype) -> ModuleType:
    # Truncation to an integer makes a rounding visible: NumPy keeps the compiler out of it where the numbers are known.
    known = not isinstance(start, jax.Array) and not isinstance(stop, jax.Array)
    if known and jnp.issubdtype(dtype, jnp.floating) and steps <= _MOST_COMPUTED:
        least = np.finfo(np.result_type(dtype, np.float32)).smallest_normal
        if any(not isinstance(end, complex) and 0 < abs(end) < least for end in (start, stop)):
            return np  # XLA:CPU takes subnormal numbers for 0
    return np if known and jnp.issubdtype(dtype, jnp.integer) else jnp


def _spaced(start: Any, end: Any, steps: int, dtype: np.dtype, module: ModuleType) -> jax.Array:
    """Return steps from `start` in the first half and back from `end` in the second, so that both are met exactly."""
    if jnp.issubdtype(dtype, jnp.complexfloating):  # by parts, or a part that is infinite makes both of them NaN
        start, end = number_as(start, dtype), number_as(end, dtype)
        real = np.finfo(dtype).dtype
        return lax.complex(
            _spaced(start.real, end.real, steps, real, jnp), _spaced(start.imag, end.imag, steps, real, jnp)
        )
    if jnp.issubdtype(dtype, jnp.integer):
        wide = np.dtype(np.float64)
        start, end = (number_as(number_as(number, dtype), wide) for number in (start, end))
    else:
        wide = np.result_type(dtype, np.float32)
        start, end = number_as(start, wide), number_as(end, wide)
    if steps == 1:
        return module.reshape(start, (1,))
    index = module.arange(steps, dtype=np.int64)
    intervals = max(steps - 1, 1)
    with np.errstate(invalid="ignore"):  # of two infinite ends
        distance = end - start
    step = distance / intervals if module is np else quotient(jnp.asarray(distance), intervals)
    forward = start + step * index.astype(wide)
    return module.where(index < steps // 2, forward, end - step * (steps - 1 - index).astype(wide))


@lowers(aten.eye.default)
def eye(n: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    return jnp.eye(n, n, dtype=_dtype_or_default(dtype))


@lowers(aten.eye.m)
def eye_of_size(n: int, m: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    return jnp.eye(n, m, dtype=_dtype_or_default(dtype))


@lowers(aten.tril_indices.default)
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = torch.int64) -> jax.Array:
    lengths = np.clip(np.arange(row) + offset + 1, 0, col)
    return _rows_and_columns(lengths, np.zeros_like(lengths), dtype)


@lowers(aten.triu_indices.default)
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = torch.int64) -> jax.Array:
    first_columns = np.clip(np.arange(row) + offset, 0, col)
    return _rows_and_columns(col - first_columns, first_columns, dtype)


def _rows_and_columns(lengths: np.ndarray, first_columns: np.ndarray, dtype: torch.dtype | None) -> jax.Array:
    """Return the row and the column of each element, row by row; only what is per row is a constant of the program."""
    total = int(lengths.sum())
    result = INT64 if dtype is None else dtypes.to_jax(dtype)
    if total == 0:
        return jnp.zeros((2, 0), result)
    ends = np.cumsum(lengths)
    index = lax.iota(INT64, total)
    rows = jnp.searchsorted(jnp.asarray(ends), index, side="right")
    columns = index + jnp.asarray(first_columns - (ends - lengths))[rows]
    return jnp.stack([rows.astype(result), columns.astype(result)])
