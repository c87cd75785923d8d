"""The precision that a rule computes in: float32 for narrower floats, as PyTorch's opmath.

Numbers among the operands are Python numbers or weakly typed zero-dim arrays (a number that changes between steps).
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.typing import ArrayLike

from . import replica_axis
from .float8 import is_float8, number_to_float8, to_float8

R = TypeVar("R")

FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)


def is_number(operand: Any) -> bool:
    """Return whether `operand` is a number without a dtype, such as a size that an export leaves open."""
    if isinstance(operand, (bool, int, float, complex)):
        return True
    return bool(getattr(operand, "weak_type", False)) or jax.export.is_symbolic_dim(operand)


def is_integer(array: jax.Array) -> bool:
    """Return whether the dtype is an integer dtype; bool is not."""
    return jnp.issubdtype(array.dtype, jnp.integer)


def is_float(array: jax.Array | np.ndarray) -> bool:
    """Return whether the dtype is a real floating-point dtype."""
    return jnp.issubdtype(array.dtype, jnp.floating)


def is_complex(array: jax.Array) -> bool:
    """Return whether the dtype is a complex dtype."""
    return jnp.issubdtype(array.dtype, jnp.complexfloating)


def rounded_to_halves(array: jax.Array) -> jax.Array:
    """Round the parts of complex numbers to float16, as those of `torch.complex32` are."""
    real, imag = (lax.convert_element_type(part, np.float16) for part in (lax.real(array), lax.imag(array)))
    return lax.complex(lax.convert_element_type(real, np.float32), lax.convert_element_type(imag, np.float32))


def converted(array: jax.Array, dtype: np.dtype) -> jax.Array:
    """Return an array in `dtype`, where numbers of 64 bits become those of 16 bits by way of float32, as in PyTorch.

    XLA rounds once or twice there, depending on the processor.
    """
    if array.dtype == FLOAT64 and is_half(dtype):
        array = lax.convert_element_type(array, FLOAT32)
    return lax.convert_element_type(array, dtype)


def is_half(dtype: np.dtype) -> bool:
    """Return whether the dtype is a float of 16 bits."""
    return dtype.itemsize == 2 and jnp.issubdtype(dtype, jnp.floating)


def number_as(number: Any, dtype: np.dtype) -> Any:
    """Return a number in `dtype`; integers wrap around, as in C."""
    if isinstance(number, (bool, int, float, complex, np.ndarray, np.generic)):
        if isinstance(number, complex) and dtype.kind not in "bc":
            number = number.real  # the imaginary part is 0, or the call was refused
        if is_float8(dtype):
            return number_to_float8(number, dtype)
        with np.errstate(all="ignore"):
            known = np.asarray(number)
            return (known.astype(FLOAT32) if known.dtype == FLOAT64 and is_half(dtype) else known).astype(dtype)
    if jax.export.is_symbolic_dim(number):
        number = jnp.asarray(number)
    return to_float8(number, dtype) if is_float8(dtype) else converted(number, dtype)


# From 2.15 on, PyTorch clamps to the nearest number that a dtype holds; before, it refused such a bound or wrapped it.
_BOUNDS_ARE_HELD = torch.__version__ >= (2, 15)  # type: ignore[operator]


def bound_as(number: Any, dtype: np.dtype) -> Any:
    """Return a bound of elements of `dtype`, in that dtype if the bound is a number."""
    if not is_number(number) or (dtype == np.bool_ and jax.export.is_symbolic_dim(number)):
        return number
    if _BOUNDS_ARE_HELD and jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize < 8:
        number = jnp.clip(number, np.iinfo(dtype).min, np.iinfo(dtype).max)
    return number_as(number, dtype)


def same_dtype(*operands: Any) -> list[jax.Array]:
    """Return the operands, with numbers in the dtype of the arrays, which is the same for all arrays.

    For booleans, a size that an export leaves open, which promotion does not know, is an int64.
    """
    dtype = next(operand.dtype for operand in operands if not is_number(operand))
    if dtype == np.bool_ and any(map(jax.export.is_symbolic_dim, operands)):
        return [number_as(operand, np.dtype(np.int64)) for operand in operands]
    return [number_as(operand, dtype) if is_number(operand) else operand for operand in operands]


def one_or_zero(truth: jax.Array, dtype: np.dtype) -> jax.Array:
    """Return truth values as numbers.

    XLA takes the product of a truth value that it converted and x for "x or 0", although 0 times NaN is NaN.
    """
    return jnp.where(truth, np.ones((), dtype), np.zeros((), dtype))


def widened(argument: object) -> Any:
    """Return `argument`, in float32 if it is an array of a narrower float dtype."""
    if isinstance(argument, (jax.Array, np.ndarray)) and is_float(argument) and argument.dtype.itemsize < 4:
        return lax.convert_element_type(argument, FLOAT32)
    return argument


_SCALE = 2.0**64


def product(self: jax.Array, other: jax.Array) -> jax.Array:
    """Multiply two arrays of one dtype, one of which may be a number.

    XLA:CPU takes a subnormal number for 0, and infinity times 0 is NaN: such a number is multiplied in two steps.
    """
    if _is_subnormal(self):
        self, other = other, self
    if not _is_subnormal(other):
        return self * other
    return lax.optimization_barrier(self * _scaled(other)) * np.asarray(1 / _SCALE, other.dtype)


def _is_subnormal(operand: Any) -> TypeGuard[np.ndarray]:
    """Return whether an operand is a subnormal number of its dtype."""
    if not isinstance(operand, np.ndarray) or operand.ndim or not is_float(operand):
        return False
    return 0 < abs(float(operand)) < float(jnp.finfo(operand.dtype).smallest_normal)


def _scaled(number: np.ndarray) -> np.ndarray:
    return np.asarray(float(number) * _SCALE, number.dtype)


def quotient(self: jax.Array, other: Any) -> jax.Array:
    """Divide self / other, rounded once, for two arrays of one dtype, or an array and a scalar.

    If the divisor is broadcast, XLA multiplies by its reciprocal, and then 49 / 49 is not 1. It cannot do this if the
    divisor seems to depend on the dividend: so the divisor is replaced where the dividend is NaN, as the result is NaN
    there in either case.
    """
    if _is_subnormal(other):
        return quotient(self, _scaled(other)) * np.asarray(_SCALE, other.dtype)
    if _is_subnormal(self):
        return quotient(jnp.asarray(_scaled(self)), other) * np.asarray(1 / _SCALE, self.dtype)
    if is_complex(self):
        return _complex_quotient(self, jnp.asarray(other, self.dtype))
    if self.dtype == FLOAT32 and _is_for_a_gpu():
        # There XLA's own is off by two units in the last place. A quotient of 51 digits rounds to the right one; one of
        # the 53 that it has LLVM would narrow to the quotient of the 24 that its operands have.
        wide = self.astype(FLOAT64) / jnp.asarray(other).astype(FLOAT64)
        return lax.reduce_precision(wide, 11, 51).astype(FLOAT32)
    is_like = jnp.ndim(self) > 0 and jnp.shape(other) == jnp.shape(self)  # a single divisor may be a constant
    result = self / (other if is_like else jnp.where(self != self, self, other))
    # XLA makes a / (b · c) of (a / b) / c, and a · c / b of a / (b / c), where the product may be 0 or infinite.
    # Rounded to the digits it has, a quotient is none that it recognises.
    return lax.reduce_precision(result, jnp.finfo(result.dtype).nexp, jnp.finfo(result.dtype).nmant)


def _complex_quotient(self: jax.Array, other: jax.Array) -> jax.Array:
    """Divide by R. L. Smith's method, as PyTorch: XLA's own makes 0 of 1 / (inf + inf·i), where this is NaN."""
    (a, b), (c, d) = ((lax.real(each), lax.imag(each)) for each in (self, other))
    first = lax.abs(c) >= lax.abs(d)
    great, small = jnp.where(first, c, d), jnp.where(first, d, c)
    ratio = small / great
    divisor = great + small * ratio
    left, right = jnp.where(first, a, b), jnp.where(first, b, a)
    imag = jnp.where(first, right - left * ratio, left * ratio - right)
    is_zero = (c == 0) & (d == 0)
    return lax.complex(
        jnp.where(is_zero, a * np.inf, (left + right * ratio) / divisor), jnp.where(is_zero, b * np.inf, imag / divisor)
    )


def _is_for_a_gpu() -> bool:
    target = replica_axis.target_in_use()
    return target is not None and target.platform == "gpu"


def in_opmath(lower: Callable[..., R]) -> Callable[..., R]:
    """Return `lower`, with every array argument widened; numbers stay weakly typed and so follow the arrays."""

    @wraps(lower)
    def rule(*args: object, **kwargs: object) -> R:
        return lower(*map(widened, args), **{name: widened(value) for name, value in kwargs.items()})

    return rule


def in_double(lower: Callable[..., R]) -> Callable[..., R]:
    """Return `lower`, computed in float64: for functions that XLA knows less well in float32 than PyTorch does."""

    @wraps(lower)
    def rule(*args: object) -> R:
        return lower(*(_doubled(argument) for argument in args))

    return rule


def _doubled(argument: object) -> object:
    if isinstance(argument, jax.Array) and is_float(argument):
        return lax.convert_element_type(argument, FLOAT64)
    return argument


def on_operands(lower: Callable[..., R]) -> Callable[..., R]:
    """Return `lower` of operands only: all of one dtype, to which numbers are rounded, and then widened."""

    @wraps(lower)
    def rule(*operands: ArrayLike) -> R:
        return lower(*map(widened, same_dtype(*operands)))

    return rule
