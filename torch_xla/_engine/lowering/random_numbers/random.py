"""Random bits, dropout, and distributions that are a function of uniform numbers.

Bits are drawn as 64-bit words and cut afterwards: on a CPU, XLA draws narrower ones at a fifth of the speed. A TPU
draws the dtype and shape that are asked for: cutting words there is a copy of an array whose last dimension is 2 or 4,
which its tiles pad to 128. Its generator is the chip's own, as in JAX's "rbg".
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ... import dtypes
from ..machinery.barrier import behind
from ..machinery.opmath import is_number, number_as, widened
from ..machinery.registry import lowers
from ..machinery.replica_axis import target_in_use
from ..machinery.xla_op_schemas import define

aten = torch.ops.aten

FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)

# How many bits of a number in [0, 1) PyTorch draws for a dtype: as many as make every value exact, and none of them 1.
MANTISSA_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}

_WORDS = (np.uint8, np.uint16, np.uint32, np.uint64)


def random_bits(key: jax.Array, shape: tuple[int, ...], dtype: type[np.unsignedinteger]) -> jax.Array:
    """Return independent random bits in an unsigned integer dtype."""
    return _random_words(key, shape, dtype, 8 * np.dtype(dtype).itemsize)


def _random_words(key: jax.Array, shape: tuple[int, ...], dtype: type[np.unsignedinteger], bits: int) -> jax.Array:
    """Return numbers of `bits` independent random bits in an unsigned integer dtype that may have more."""
    count = int(np.prod(shape))
    if count == 0:
        return jnp.zeros(shape, dtype)
    target = target_in_use()
    if target is not None and target.is_spread:
        return _upper(_bits_of_places(key, shape, dtype), bits)
    each = 8 // np.dtype(dtype).itemsize

    def cut(data: jax.Array) -> jax.Array:
        words = lax.rng_bit_generator(data, (-(-count // each),), np.dtype(np.uint64))[1]
        if each > 1:
            words = lax.bitcast_convert_type(words, dtype).reshape(-1)
        return _upper(lax.slice_in_dim(words, 0, count).reshape(shape), bits)

    def direct(data: jax.Array) -> jax.Array:
        # A generator's words are an array in memory: the narrowest ones that have the bits.
        narrowest = next(each for each in _WORDS if 8 * np.dtype(each).itemsize >= bits)
        return _upper(lax.rng_bit_generator(data, shape, np.dtype(narrowest))[1], bits).astype(dtype)

    def generated(data: jax.Array) -> jax.Array:
        return lax.platform_dependent(data, tpu=direct, default=cut)

    # With a batch of keys, which `jax.vmap` makes of one, XLA's generator would look at the first key alone.
    return jax.custom_batching.sequential_vmap(generated)(jax.random.key_data(key))


def _upper(words: jax.Array, bits: int) -> jax.Array:
    unused = 8 * words.dtype.itemsize - bits
    return words >> unused if unused else words


def _bits_of_places(key: jax.Array, shape: tuple[int, ...], dtype: type[np.unsignedinteger]) -> jax.Array:
    """Draw bits where XLA divides a program among devices: each bit depends only on the key and its index.

    So each device draws the bits of its own part, and the bits do not depend on the sharding. With the other generator,
    every device would draw all bits.
    """
    words = jax.random.key_data(key)
    mixed = jax.random.wrap_key_data(words[:2] ^ words[2:], impl="threefry2x32")
    with jax.threefry_partitionable(True):
        return jax.random.bits(mixed, shape, dtype)


def working_dtype(dtype: np.dtype) -> np.dtype:
    """Return the real dtype in which numbers for `dtype` are computed: float64 for integers, which float32 cannot all
    hold.
    """
    if jnp.issubdtype(dtype, jnp.inexact):
        return FLOAT64 if dtype in (np.float64, np.complex128) else FLOAT32
    return FLOAT64


def uniform_numbers(key: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    """Draw uniformly from [0, 1), with the resolution of `dtype`, in its working dtype."""
    bits = MANTISSA_BITS.get(dtype.name, 53 if working_dtype(dtype) == FLOAT64 else 24)
    if bits == 53:
        return _random_words(key, shape, np.uint64, bits).astype(np.int64).astype(FLOAT64) * 2.0**-bits
    return _random_words(key, shape, np.uint32, bits).astype(np.int32).astype(FLOAT32) * 2.0**-bits


def inner_uniform_numbers(key: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    """Draw uniformly from (0, 1), never an end, in the working dtype: the odd multiples of a power of two."""
    if working_dtype(dtype) == FLOAT64:
        return ((random_bits(key, shape, np.uint64) >> 11) | 1).astype(np.int64).astype(FLOAT64) * 2.0**-53
    return ((random_bits(key, shape, np.uint32) >> 8) | 1).astype(np.int32).astype(FLOAT32) * 2.0**-24


def _signed_odd(bits: jax.Array) -> jax.Array:
    """Draw uniformly from (-1, 1), never 0 or an end: the odd multiples of a power of two."""
    if bits.dtype == np.uint64:
        return ((lax.bitcast_convert_type(bits, np.int64) >> 10) | 1).astype(FLOAT64) * 2.0**-53
    return ((lax.bitcast_convert_type(bits, np.int32) >> 7) | 1).astype(FLOAT32) * 2.0**-24


def _bits_for(key: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    return random_bits(key, shape, np.uint64 if working_dtype(dtype) == FLOAT64 else np.uint32)


def normal_numbers(key: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    """Draw standard normal numbers in the working dtype."""
    return _rounded(lax.erf_inv(_signed_odd(_bits_for(key, shape, dtype))) * math.sqrt(2))


def _rounded(product: jax.Array) -> jax.Array:
    """Return a product as it is, which LLVM then does not join with a sum.

    Otherwise some programs would round once and others twice, by what LLVM knows of the operands.
    """
    return jnp.where(product != product, jnp.nan, product)


def _moved(numbers: jax.Array, scale: object, start: object) -> jax.Array:
    """Return `numbers` times `scale` plus `start`, in their dtype."""
    return _rounded(numbers * number_as(scale, numbers.dtype)) + number_as(start, numbers.dtype)


def exponential_numbers(key: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    """Draw exponential numbers with rate 1, always positive, in the working dtype."""
    return -jnp.log(inner_uniform_numbers(key, shape, dtype))


def chance(key: jax.Array, shape: tuple[int, ...], p: Any) -> jax.Array:
    """Draw true with probability `p`, the same whether it is a known number or an argument of the program."""
    is_known = isinstance(p, (int, float))
    if is_known and (p <= 0 or p >= 1):
        return jnp.full(shape, p >= 1, np.bool_)
    if not is_known:
        p = jnp.asarray(p, FLOAT64)
    # 16 bits do where rounding p to 1/65536 changes the rarer outcome by less than a thousandth.
    rounded = (round if is_known else jnp.round)(p * 2**16)
    rarer = min(p, 1 - p) if is_known else jnp.minimum(p, 1 - p)
    is_exact = abs(rounded - p * 2**16) < 1e-3 * rarer * 2**16
    upper = random_bits(key, shape, np.uint16)
    if is_known and is_exact:
        return upper < np.uint16(rounded)
    # The others have 16 more, of another key: what a draw finds must not depend on what is known when it is compiled.
    words = (upper.astype(np.uint32) << 16) | random_bits(_second(key), shape, np.uint16).astype(np.uint32)
    if is_known:
        return words < np.uint32(min(round(p * 2**32), 2**32 - 1))
    threshold = jnp.where(is_exact, rounded * 2**16, jnp.round(p * 2**32))
    return (words < jnp.clip(threshold, 0, 2**32 - 1).astype(np.uint32)) | (p >= 1)


def _second(key: jax.Array) -> jax.Array:
    """Return another key that depends on `key` alone."""
    words = jax.random.key_data(key) ^ np.uint32(0x5BD1E995)
    return jax.random.wrap_key_data(words, impl=jax.random.key_impl(key))


def as_argument(number: object, key: jax.Array, dtype: np.dtype = FLOAT64) -> jax.Array:
    """Return a parameter of a distribution, by default in float64, which XLA does not know though it may be constant.

    XLA multiplies constants with each other, and has other functions for them than for arguments: the numbers drawn
    would depend on whether the parameter has changed since the program was first compiled.
    """
    return behind(jnp.asarray(number, dtype), jax.random.key_data(key))


@lowers(aten.bernoulli.default, random=True)
def bernoulli(self: jax.Array, *, key: jax.Array) -> jax.Array:
    return uniform_numbers(key, self.shape, working_dtype(self.dtype)) < widened(self)


@lowers(aten.bernoulli.Tensor, random=True)
def bernoulli_tensor(self: jax.Array, p: jax.Array, *, key: jax.Array) -> jax.Array:
    return uniform_numbers(key, self.shape, working_dtype(p.dtype)) < widened(p)


@lowers(aten.bernoulli.p, random=True)
def bernoulli_p(self: jax.Array, p: object, *, key: jax.Array) -> jax.Array:
    return chance(key, self.shape, p)


@lowers(aten.native_dropout.default, random=True)
def native_dropout(
    input: jax.Array, p: jax.Array | float, train: bool | None = None, *, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    if train is False:
        return input, jnp.ones(input.shape, np.bool_)
    mask = chance(key, input.shape, 1 - p)
    return native_dropout_backward(input, mask, dropout_scale(p)), mask


def dropout_scale(p: jax.Array | float) -> jax.Array | float:
    """Return the factor by which dropout with probability `p` multiplies the elements that it keeps."""
    if isinstance(p, (int, float)):
        return 0.0 if p == 1 else 1 / (1 - p)
    return jnp.where(p == 1, 0.0, 1 / (1 - p))


@lowers(aten.native_dropout_backward.default)
def native_dropout_backward(grad_output: jax.Array, mask: jax.Array, scale: object) -> jax.Array:
    # A product, not a choice: a dropped infinity becomes NaN in PyTorch.
    grad = widened(grad_output) if jnp.issubdtype(grad_output.dtype, jnp.inexact) else grad_output.astype(FLOAT32)
    if mask.dtype == np.bool_:
        return grad * jnp.where(mask, jnp.asarray(number_as(scale, grad.dtype)), jnp.zeros((), grad.dtype))
    # A call by hand: PyTorch multiplies by each element of a mask that is no truth value.
    kept = widened(mask) if jnp.issubdtype(mask.dtype, jnp.inexact) else mask.astype(FLOAT32)
    dtype = jnp.promote_types(grad.dtype, kept.dtype)
    return grad.astype(dtype) * kept.astype(dtype) * jnp.asarray(number_as(scale, dtype))


def _of_parts(self: jax.Array, key: jax.Array, draw: Any) -> jax.Array:
    """Return numbers of the shape and dtype of `self`; a complex one has two parts, drawn alike."""
    if not jnp.issubdtype(self.dtype, jnp.complexfloating):
        return draw(key, self.shape, self.dtype)
    parts = draw(key, (2, *self.shape), self.dtype)
    return lax.complex(parts[0], parts[1])


@lowers(aten.uniform.default, random=True)
def uniform(self: jax.Array, low: object = 0.0, high: object = 1.0, *, key: jax.Array) -> jax.Array:
    def draw(key: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
        numbers = uniform_numbers(key, shape, dtype)
        start, stop = as_argument(low, key), as_argument(high, key)
        # LLVM knows that no product is NaN, so it would remove the choice of `_moved` from some programs.
        return numbers * number_as(stop - start, numbers.dtype) + number_as(start, numbers.dtype)

    return _of_parts(self, key, draw)


@lowers(aten.normal_functional.default, random=True)
def normal_functional(self: jax.Array, mean: object = 0.0, std: object = 1.0, *, key: jax.Array) -> jax.Array:
    def draw(key: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
        numbers = normal_numbers(key, shape, dtype)
        start, scale = as_argument(mean, key), as_argument(std, key)
        if jnp.issubdtype(self.dtype, jnp.complexfloating):
            scale = scale * 0.5**0.5  # PyTorch moves both parts by the mean
        return _moved(numbers, scale, start)

    return _of_parts(self, key, draw)


@lowers(aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor, random=True)
def normal_of_tensors(mean: Any, std: Any = 1.0, *, key: jax.Array) -> jax.Array:
    tensors = [operand for operand in (mean, std) if not is_number(operand)]
    dtype = tensors[0].dtype
    standard = jnp.zeros(jnp.broadcast_shapes(*(tensor.shape for tensor in tensors)), dtype)
    numbers = normal_functional(standard, key=key)
    # A mean that is a product itself must not be joined with the sum either.
    mean, std = (as_argument(each, key) if is_number(each) else _rounded(each) for each in (mean, std))
    return _moved(numbers, std, mean)


@lowers(aten.normal.float_float, random=True)
def normal_float_float(
    mean: object, std: object, size: list[int], *, dtype: torch.dtype | None = None, key: jax.Array
) -> jax.Array:
    like = jnp.zeros(tuple(size), dtypes.to_jax(dtype or torch.get_default_dtype()))
    return normal_functional(like, mean, std, key=key)


@lowers(aten.log_normal.default, random=True)
def log_normal(self: jax.Array, mean: object = 1.0, std: object = 2.0, *, key: jax.Array) -> jax.Array:
    return jnp.exp(normal_functional(self, mean, std, key=key))


@lowers(aten.exponential.default, random=True)
def exponential(self: jax.Array, lambd: object = 1.0, *, key: jax.Array) -> jax.Array:
    numbers = exponential_numbers(key, self.shape, self.dtype)
    return numbers / number_as(as_argument(lambd, key), numbers.dtype)


@lowers(aten.geometric.default, random=True)
def geometric(self: jax.Array, p: object, *, key: jax.Array) -> jax.Array:
    # The number of trials up to the first success.
    numbers = exponential_numbers(key, self.shape, self.dtype)
    return jnp.ceil(numbers / number_as(-jnp.log1p(-as_argument(p, key)), numbers.dtype))


@lowers(aten.cauchy.default, random=True)
def cauchy(self: jax.Array, median: object = 0.0, sigma: object = 1.0, *, key: jax.Array) -> jax.Array:
    # The tangent of an angle within 45°, or its reciprocal: near 90° the tangent of a rounded angle is wrong. The bit
    # that chooses is one that the angle does not use.
    bits = _bits_for(key, self.shape, self.dtype)
    tangent = jnp.tan(_signed_odd(bits) * (math.pi / 4))
    numbers = jnp.where((bits & 1).astype(np.bool_), tangent, 1 / tangent)
    median, sigma = as_argument(median, key), as_argument(sigma, key)
    return _moved(numbers, sigma, median)


@lowers(aten.rrelu_with_noise_functional.default, random=True)
def rrelu_with_noise(
    self: jax.Array,
    noise: jax.Array,
    lower: Any = 0.125,
    upper: Any = 1 / 3,
    training: bool = False,
    *,
    key: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    wide = widened(self)
    negative = wide <= 0
    if not training:
        return jnp.where(negative, wide * number_as((lower + upper) / 2, wide.dtype), wide), noise
    slopes = jnp.where(negative, uniform(self, lower, upper, key=key), jnp.ones((), wide.dtype))
    return wide * slopes, slopes


def _integers(key: jax.Array, shape: tuple[int, ...], start: int, count: int) -> jax.Array:
    """Return integers from `start`, each of `count` as likely as the others, as int64."""
    words = random_bits(key, shape, np.uint64)
    if count & (count - 1) == 0:
        offsets = words & np.uint64(count - 1)
    else:
        # The upper half of the 128 bits of words · count.
        half = np.uint64(2**32 - 1)
        high, low = words >> 32, words & half
        count_high, count_low = np.uint64(count >> 32), np.uint64(count & (2**32 - 1))
        middle = high * count_low + ((low * count_low) >> 32)
        offsets = high * count_high + (middle >> 32) + ((low * count_high + (middle & half)) >> 32)
    return lax.bitcast_convert_type(offsets, np.int64) + np.int64(start)


def _largest(dtype: np.dtype) -> int:
    """Return the largest integer that PyTorch draws for a dtype when no bound is given."""
    if dtype == np.bool_:
        return 1
    if jnp.issubdtype(dtype, jnp.integer):
        return min(int(jnp.iinfo(dtype).max), 2**63 - 1)
    return int(2 ** MANTISSA_BITS[dtype.name])


@lowers(aten.random.default, random=True)
def random_default(self: jax.Array, *, key: jax.Array) -> jax.Array:
    return _integers(key, self.shape, 0, _largest(self.dtype) + 1)


@lowers(getattr(aten.random, "from"), random=True)
def random_from(self: jax.Array, start: int, to: int | None, *, key: jax.Array) -> jax.Array:
    stop = _largest(self.dtype) + 1 if to is None else to
    return _integers(key, self.shape, start, stop - start)


@lowers(aten.random.to, random=True)
def random_to(self: jax.Array, to: int, *, key: jax.Array) -> jax.Array:
    return _integers(key, self.shape, 0, to)


# For graphs of PyTorch, whose source has no name for `random.from`, and whose `random.to` takes no `to` that int64 does
# not hold.
RANDOM_BETWEEN = define(
    "random_between(Tensor self, int start, int to) -> Tensor",
    like=lambda self, start, to: torch.empty_like(self),
    on_cpu=lambda self, start, to: torch.empty_like(self).random_(start, to),
)
lowers(RANDOM_BETWEEN, random=True)(random_from)


@lowers(aten.randperm.default, aten.randperm.generator, random=True)
def randperm(n: int, *, dtype: torch.dtype | None = None, key: jax.Array) -> jax.Array:
    # 64 bits make a tie, which would favour one order, as good as impossible.
    order = lax.sort((random_bits(key, (n,), np.uint64), lax.iota(np.int64, n)), num_keys=1)
    return order[1]
