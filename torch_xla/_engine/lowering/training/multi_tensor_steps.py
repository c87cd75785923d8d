"""Whole optimizer steps of PyTorch's multi-tensor implementations, each as one operation on lists.

A rule calls the rules of the `_foreach_` operators in PyTorch's order, so the numbers are those of the separate calls.
On the CPU the operators themselves are called.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import torch

from ...compat.names.torch import OpOverload
from ..machinery.cast import cast
from ..machinery.registry import lowers, rule_of
from ..machinery.xla_op_schemas import LIBRARY, define

aten = torch.ops.aten

Arrays = list[jax.Array]


def _each(op: OpOverload, arrays: Arrays, *others: object, **options: object) -> Arrays:
    """Return the result of a `_foreach_` operator in the dtypes of `arrays`, as the operator by itself returns it."""
    rule = rule_of(op)
    assert rule is not None, op
    found = rule.lower(arrays, *others, **options)
    return [cast(new, old.dtype) for new, old in zip(found, arrays, strict=True)]


def _define_in_place(name: str, arguments: str) -> None:
    """Define the operator that writes its results to the lists that it is given."""
    LIBRARY.define(f"{name}({arguments}) -> ()")
    LIBRARY.impl(name, lambda *_: None, "Meta")


# `decay` multiplies the parameters, `penalty` adds them to the gradients, `value` multiplies what gradients add; `None`
# leaves that out.
_ADAM = (
    "Tensor{a}[] params, Tensor{b}[] exp_avgs, Tensor{c}[] exp_avg_sqs, Tensor{d}[] max_exp_avg_sqs, Tensor[] grads, "
    "bool maximize, float? decay, float? penalty, float weight, float beta2, float value, float eps, "
)
# Parameters that have made the same number of steps share the two numbers that depend on it.
_OF_EACH = "float[] bias_corrections2_sqrt, float[] step_sizes"
_OF_ALL = "float bias_correction2_sqrt, float step_size"
_SGD = (
    "Tensor{a}[] params, Tensor{b}[] momentum_buffers, Tensor[] grads, bool maximize, float? penalty, float momentum, "
    "float? value, bool nesterov, float minus_lr"
)


def _functional(arguments: str) -> str:
    return arguments.format(a="", b="", c="", d="")


def _in_place(arguments: str) -> str:
    return arguments.format(a="(a!)", b="(b!)", c="(c!)", d="(d!)")


def _like(*lists: list[torch.Tensor]) -> tuple[list[torch.Tensor], ...]:
    return tuple([torch.empty_like(each) for each in tensors] for tensors in lists)


def adam(
    each: Callable[..., Any],
    params: Arrays,
    exp_avgs: Arrays,
    exp_avg_sqs: Arrays,
    max_exp_avg_sqs: Arrays,
    grads: Arrays,
    maximize: bool,
    decay: Any,
    penalty: Any,
    weight: Any,
    beta2: Any,
    value: Any,
    eps: jax.Array | float,
    bias_corrections2_sqrt: Any,
    step_sizes: Any,
) -> tuple[Arrays, Arrays, Arrays, Arrays]:
    """Do as `torch.optim.adam._multi_tensor_adam`, where the steps are counted on the host.

    The last two arguments are lists with a number for each parameter, or a number for all of them.
    """
    numbers = "ScalarList" if isinstance(step_sizes, (list, tuple)) else "Scalar"
    if maximize:
        grads = each(aten._foreach_neg.default, grads)
    if decay is not None:
        params = each(aten._foreach_mul.Scalar, params, decay)
    if penalty is not None:
        grads = each(aten._foreach_add.List, grads, params, alpha=penalty)
    exp_avgs = each(aten._foreach_lerp.Scalar, exp_avgs, grads, weight)
    exp_avg_sqs = each(aten._foreach_mul.Scalar, exp_avg_sqs, beta2)
    exp_avg_sqs = each(aten._foreach_addcmul.Scalar, exp_avg_sqs, grads, grads, value)
    largest = exp_avg_sqs
    if max_exp_avg_sqs:
        largest = max_exp_avg_sqs = each(aten._foreach_maximum.List, max_exp_avg_sqs, exp_avg_sqs)
    roots = each(aten._foreach_sqrt.default, largest)
    roots = each(getattr(aten._foreach_div, numbers), roots, bias_corrections2_sqrt)
    roots = each(aten._foreach_add.Scalar, roots, eps)
    params = each(getattr(aten._foreach_addcdiv, numbers), params, exp_avgs, roots, step_sizes)
    return params, exp_avgs, exp_avg_sqs, max_exp_avg_sqs


def sgd(
    each: Callable[..., Any],
    params: Arrays,
    momentum_buffers: Arrays,
    grads: Arrays,
    maximize: bool,
    penalty: Any,
    momentum: Any,
    value: Any,
    nesterov: bool,
    minus_lr: Any,
) -> tuple[Arrays, Arrays]:
    """Do as `torch.optim.sgd._multi_tensor_sgd`, where every momentum exists or none is used."""
    if maximize:
        grads = each(aten._foreach_neg.default, grads)
    if penalty is not None:
        grads = each(aten._foreach_add.List, grads, params, alpha=penalty)
    if momentum_buffers:
        momentum_buffers = each(aten._foreach_mul.Scalar, momentum_buffers, momentum)
        factor = {} if value is None else {"alpha": value}
        momentum_buffers = each(aten._foreach_add.List, momentum_buffers, grads, **factor)
        grads = each(aten._foreach_add.List, grads, momentum_buffers, alpha=momentum) if nesterov else momentum_buffers
    return each(aten._foreach_add.List, params, grads, alpha=minus_lr), momentum_buffers


def _call(op: OpOverload, *args: object, **kwargs: object) -> list[torch.Tensor]:
    return op(*args, **kwargs)


def _define_adam(overload: str, numbers: str) -> OpOverload:
    _define_in_place(f"multi_tensor_adam_{overload}", _in_place(_ADAM + numbers))
    op = define(
        f"multi_tensor_adam{overload}({_functional(_ADAM + numbers)}) -> (Tensor[], Tensor[], Tensor[], Tensor[])",
        lambda *args: _like(*args[:4]),
        partial(adam, _call),
    )
    lowers(op, separable=True)(partial(adam, _each))
    return op


ADAM = _define_adam("", _OF_EACH)
ADAM_OF_EQUAL_COUNTS = _define_adam(".equal_counts", _OF_ALL)
SGD = define(
    f"multi_tensor_sgd({_functional(_SGD)}) -> (Tensor[], Tensor[])",
    lambda *args: _like(*args[:2]),
    partial(sgd, _call),
)
_define_in_place("multi_tensor_sgd_", _in_place(_SGD))
lowers(SGD, separable=True)(partial(sgd, _each))
