"""Operations on lists of tensors: each applies a rule for one tensor along the lists."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from ... import dtypes
from ...compat.names.torch import OpOverload
from ..machinery.cast import cast
from ..machinery.opmath import is_number, number_as, widened
from ..machinery.promotion import common_dtype, float_dtype
from ..machinery.registry import Promotion, lowers, rule_of

aten = torch.ops.aten

# A number of every kind, for the promotion of numbers that are arguments of the program and have no Python value.
_KINDS = {"b": False, "i": 0, "f": 0.0, "c": 0j}


def _apply(op: OpOverload, args: list[Any], kwargs: Mapping[str, object]) -> Any:
    """Call `op` on one element of each list, promoted as if it had been called alone: factors in keywords do not
    promote.
    """
    rule = rule_of(op)
    if rule is None:
        raise NotImplementedError(f"{op} has no lowering rule")
    if rule.promotion is not Promotion.NONE:
        numbers = [
            leaf if isinstance(leaf, (bool, int, float, complex)) else _KINDS[jnp.asarray(leaf).dtype.kind]
            for leaf in args
            if is_number(leaf)
        ]
        tensors = [(dtypes.to_torch(leaf.dtype), leaf.ndim) for leaf in args if _is_tensor(leaf)]
        common = common_dtype(tensors, numbers)
        dtype = dtypes.to_jax(float_dtype(common) if rule.promotion is Promotion.FLOAT else common)
        args = [cast(arg, dtype) if _is_tensor(arg) else arg for arg in args]
    return rule.lower(*args, **kwargs)


def _is_tensor(argument: object) -> bool:
    return isinstance(argument, jax.Array) and not is_number(argument)


def along_lists(op: OpOverload) -> Callable[..., list[jax.Array]]:
    """Return the rule of `op` along lists; an argument that is no list is the same for every element."""

    def lower(*args: object, **kwargs: object) -> list[jax.Array]:
        length = next(len(arg) for arg in args if isinstance(arg, list))
        return [
            _apply(op, [arg[index] if isinstance(arg, list) else arg for arg in args], kwargs)
            for index in range(length)
        ]

    return lower


def by_element(op: OpOverload) -> Callable[..., list[jax.Array]]:
    """Do as `along_lists`, for an `op` that treats elements alike: a list of single elements is computed as one vector.

    Optimizers keep a step count for each parameter. A program that adds 1 to each of a hundred by itself, and reads
    each, has hundreds of small loops for XLA to compile and to start.
    """
    each = along_lists(op)

    def lower(*args: object, **kwargs: object) -> list[jax.Array]:
        if not all(_are_single_elements(arg) if isinstance(arg, list) else not _is_tensor(arg) for arg in args):
            return each(*args, **kwargs)
        vectors = [jnp.stack(arg) if isinstance(arg, list) else arg for arg in args]
        return list(jnp.unstack(_apply(op, vectors, kwargs)))

    return lower


def _are_single_elements(arrays: Sequence[jax.Array]) -> bool:
    """Return whether all are tensors without dimensions, and of one dtype."""
    return all(_is_tensor(array) and not array.ndim and array.dtype == arrays[0].dtype for array in arrays)


UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round "
    "rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
)
for _name in UNARY.split():
    lowers(getattr(aten, f"_foreach_{_name}").default, separable=True)(by_element(getattr(aten, _name).default))
lowers(aten._foreach_max.default, separable=True)(along_lists(aten.max.default))

ROWS: dict[OpOverload, OpOverload] = {
    aten._foreach_add.List: aten.add.Tensor,
    aten._foreach_add.Scalar: aten.add.Scalar,
    aten._foreach_add.ScalarList: aten.add.Scalar,
    aten._foreach_add.Tensor: aten.add.Tensor,
    aten._foreach_sub.List: aten.sub.Tensor,
    aten._foreach_sub.Scalar: aten.sub.Scalar,
    aten._foreach_sub.ScalarList: aten.sub.Scalar,
    aten._foreach_mul.List: aten.mul.Tensor,
    aten._foreach_mul.Scalar: aten.mul.Scalar,
    aten._foreach_mul.ScalarList: aten.mul.Scalar,
    aten._foreach_mul.Tensor: aten.mul.Tensor,
    aten._foreach_div.List: aten.div.Tensor,
    aten._foreach_div.Scalar: aten.div.Scalar,
    aten._foreach_div.ScalarList: aten.div.Scalar,
    aten._foreach_div.Tensor: aten.div.Tensor,
    aten._foreach_pow.List: aten.pow.Tensor_Tensor,
    aten._foreach_pow.Scalar: aten.pow.Tensor_Scalar,
    aten._foreach_pow.ScalarList: aten.pow.Tensor_Scalar,
    aten._foreach_pow.ScalarAndTensor: aten.pow.Scalar,
    aten._foreach_clamp_max.List: aten.clamp_max.Tensor,
    aten._foreach_clamp_max.Scalar: aten.clamp_max.default,
    aten._foreach_clamp_max.ScalarList: aten.clamp_max.default,
    aten._foreach_clamp_min.List: aten.clamp_min.Tensor,
    aten._foreach_clamp_min.Scalar: aten.clamp_min.default,
    aten._foreach_clamp_min.ScalarList: aten.clamp_min.default,
    # The larger of a tensor and a number is the tensor clamped from below.
    aten._foreach_maximum.List: aten.maximum.default,
    aten._foreach_maximum.Scalar: aten.clamp_min.default,
    aten._foreach_maximum.ScalarList: aten.clamp_min.default,
    aten._foreach_minimum.List: aten.minimum.default,
    aten._foreach_minimum.Scalar: aten.clamp_max.default,
    aten._foreach_minimum.ScalarList: aten.clamp_max.default,
    aten._foreach_lerp.List: aten.lerp.Tensor,
    aten._foreach_lerp.Scalar: aten.lerp.Scalar,
    aten._foreach_lerp.ScalarList: aten.lerp.Scalar,
    aten._foreach_zero.default: aten.zeros_like.default,
}
for _foreach, _single in ROWS.items():
    lowers(_foreach, separable=True)(by_element(_single))

# Newer than the oldest PyTorch we support.
if hasattr(aten, "_foreach_clone"):
    lowers(aten._foreach_clone.default, separable=True)(along_lists(aten.clone.default))
if hasattr(aten, "_foreach_mm"):
    lowers(aten._foreach_mm.default, separable=True)(along_lists(aten.mm.default))


# The factor is a positional argument here, and a keyword there.
def _with_value(op: OpOverload) -> Callable[..., list[jax.Array]]:
    def lower(
        self: Sequence[jax.Array], tensor1: Sequence[object], tensor2: Sequence[object], value: object = 1
    ) -> list[jax.Array]:
        values = value if isinstance(value, list) else [value] * len(self)
        return [
            _apply(op, [*operands], {"value": factor})
            for *operands, factor in zip(self, tensor1, tensor2, values, strict=True)
        ]

    return lower


# The factors are the elements of one tensor, and act like numbers: they do not promote.
def _with_tensor_of_values(op: OpOverload) -> Callable[..., list[jax.Array]]:
    scaled = _with_value(op)

    def lower(
        self: Sequence[jax.Array], tensor1: Sequence[object], tensor2: Sequence[object], scalars: jax.Array
    ) -> list[jax.Array]:
        factors = [
            number_as(lax.index_in_dim(scalars, index, keepdims=False), widened(element).dtype)
            for index, element in enumerate(self)
        ]
        return scaled(self, tensor1, tensor2, factors)

    return lower


lowers(aten._foreach_addcmul.Scalar, aten._foreach_addcmul.ScalarList, separable=True)(
    _with_value(aten.addcmul.default)
)
lowers(aten._foreach_addcdiv.Scalar, aten._foreach_addcdiv.ScalarList, separable=True)(
    _with_value(aten.addcdiv.default)
)
lowers(aten._foreach_addcmul.Tensor)(_with_tensor_of_values(aten.addcmul.default))
lowers(aten._foreach_addcdiv.Tensor)(_with_tensor_of_values(aten.addcdiv.default))


@lowers(aten._foreach_copy.default, separable=True)
def foreach_copy(self: list[jax.Array], src: list[jax.Array]) -> list[jax.Array]:
    return [
        jnp.broadcast_to(cast(source, target.dtype), target.shape) for target, source in zip(self, src, strict=True)
    ]


@lowers(aten._foreach_norm.Scalar, separable=True)
def foreach_norm(self: list[jax.Array], ord: object = 2, dtype: torch.dtype | None = None) -> list[jax.Array]:
    return [_apply(aten.linalg_vector_norm.default, [element, ord], {"dtype": dtype}) for element in self]


def foreach_powsum(self: list[jax.Array], ord: object = 2, dtype: torch.dtype | None = None) -> list[jax.Array]:
    """Return for each tensor the sum of its elements' powers: a norm without its root."""
    return [_apply(aten.linalg__powsum.default, [element, ord], {"dtype": dtype}) for element in self]


if hasattr(aten, "_foreach_powsum"):
    lowers(aten._foreach_powsum.Scalar, separable=True)(foreach_powsum)


@lowers(aten._amp_foreach_non_finite_check_and_unscale.default)
def amp_foreach_non_finite_check_and_unscale(
    self: list[jax.Array], found_inf: jax.Array, inv_scale: jax.Array
) -> tuple[list[jax.Array], jax.Array]:
    finite = jnp.stack([jnp.all(jnp.isfinite(gradient)) for gradient in self])
    wide = [widened(gradient) for gradient in self]
    factor = inv_scale.reshape(())
    unscaled = [
        cast(gradient * number_as(factor, gradient.dtype), before.dtype)
        for gradient, before in zip(wide, self, strict=True)
    ]
    return unscaled, jnp.where(finite.all(), found_inf, jnp.ones_like(found_inf))


@lowers(aten._amp_update_scale.default)
def amp_update_scale(
    self: jax.Array,
    growth_tracker: jax.Array,
    found_inf: jax.Array,
    scale_growth_factor: object,
    scale_backoff_factor: object,
    growth_interval: int,
) -> tuple[jax.Array, jax.Array]:
    bad = (found_inf != 0).reshape(self.shape)
    successes = growth_tracker + 1
    grown = self * number_as(scale_growth_factor, self.dtype)
    grows = (successes == growth_interval).reshape(self.shape)
    # A scale that would overflow stays as it is.
    scale = jnp.where(grows & jnp.isfinite(grown), grown, self)
    scale = jnp.where(bad, self * number_as(scale_backoff_factor, self.dtype), scale)
    restarts = (bad | grows).reshape(growth_tracker.shape)
    return scale, jnp.where(restarts, jnp.zeros_like(growth_tracker), successes)
