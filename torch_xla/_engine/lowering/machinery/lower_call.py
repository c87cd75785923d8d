"""Lower one plan to JAX: casts by its promotion, the rule, casts to the dtypes that PyTorch promises."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ... import dtypes
from ...ir.call_plan import Number, Operand, Plan
from .cast import cast
from .opmath import is_number, number_as, rounded_to_halves
from .product_precision import precision_of
from .registry import rule_of

_NEEDS_A_NUMBER = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


class NeedsStaticNumber(Exception):
    """A rule looks at a number that was to be an argument of the program."""


def lower(
    plan: Plan, operands: Sequence[jax.Array], numbers: Sequence[jax.Array | float], key: jax.Array | None
) -> list[jax.Array]:
    """Return the arrays of the plan's outputs, flat, each of the size and dtype PyTorch promised."""
    flat = flatten(apply_rule(plan, operands, numbers, key), plan)
    return [_finish(array, spec, plan) for array, spec in zip(flat, plan.outputs, strict=True)]


def apply_rule(
    plan: Plan, operands: Sequence[jax.Array], numbers: Sequence[jax.Array | float], key: jax.Array | None
) -> object:
    """Return the result of the plan's rule for these operands."""
    rule = rule_of(plan.op)
    if rule is None:
        raise NotImplementedError(f"{plan.op} has no lowering rule")
    filled, named = arguments_of(plan, operands, numbers)
    if rule.random:
        named["key"] = key
    try:
        with precision_of(jax.tree.leaves((filled, named))):
            return rule.lower(*filled, **named)
    except _NEEDS_A_NUMBER as error:
        raise NeedsStaticNumber(str(plan.op)) from error


def arguments_of(
    plan: Plan, operands: Sequence[Any], numbers: Sequence[jax.Array | float]
) -> tuple[list[object], dict[str, object]]:
    """Return the positional and the named arguments for the plan's rule."""
    if plan.compute_dtype is not None:
        dtype = dtypes.to_jax(plan.compute_dtype)
        operands = [x if x.dtype == dtype else cast(x, dtype) for x in operands]
    args, kwargs = plan.arguments
    named = {k: _fill(v, operands, numbers) for k, v in kwargs.items()}
    if plan.compute_dtype is torch.complex32:
        operands = [rounded_to_halves(x) for x in operands]  # a zero-dim tensor may have been wider
        return [_rounded_number(_fill(a, operands, numbers)) for a in args], named
    return [_fill(a, operands, numbers) for a in args], named


def _rounded_number(argument: Any) -> object:
    """Return the value that PyTorch's CPU kernels use for a number in operations on `torch.complex32`."""
    is_complex = isinstance(argument, (float, complex)) or (is_number(argument) and not isinstance(argument, int))
    return rounded_to_halves(number_as(argument, np.dtype(np.complex64))) if is_complex else argument


def _fill(argument: object, operands: Sequence[jax.Array], numbers: Sequence[jax.Array | float]) -> object:
    if isinstance(argument, Operand):
        return operands[argument.index]
    if isinstance(argument, Number):
        return numbers[argument.index]
    if isinstance(argument, (list, tuple)):
        return [_fill(a, operands, numbers) for a in argument]
    return argument


def flatten(result: Any, plan: Plan) -> list[Any]:
    """Return the arrays in the result of a rule, without the results that are not used."""
    if plan.structure == (-1,):
        return [result]
    if len(plan.structure) == 1:
        return list(result)
    flat: list[Any] = []
    for part, count in zip(result, plan.structure, strict=True):
        if count == -1:
            flat.append(part)
        elif count >= 0:
            if len(part) != count:
                raise ValueError(f"the rule of {plan.op} returned {len(part)} arrays where {count} were expected")
            flat.extend(part)
    return flat


def _finish(array: jax.Array, spec: Any, plan: Plan) -> jax.Array:
    dtype = dtypes.to_jax(dtypes.on_device(spec.dtype))
    array = jnp.asarray(array)
    if array.dtype != dtype:
        array = cast(array, dtype)
    if spec.dtype is torch.complex32:
        array = rounded_to_halves(array)
    if array.shape != spec.size:
        raise ValueError(f"the rule of {plan.op} returned shape {array.shape}, PyTorch expects {spec.size}")
    return array
