"""Record the step of `Adam`, `AdamW` and `SGD` for all parameters as one operation.

PyTorch's multi-tensor implementations call eight `_foreach_` operators, each on lists of all parameters. One operation
takes a third of the time to record, and gives the same numbers: its rule calls the rules of the eight. The counts of
steps stay on the CPU. What is rare (complex parameters, a learning rate in a tensor, counts on the device) is left to
PyTorch's implementation.
"""

import functools
from collections.abc import Callable, Iterable
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ...atomic import uncollected
from ...compat.names import torch as private
from ...lowering.machinery.xla_op_schemas import LIBRARY
from ..recording_kernel import recorder

_adam = torch.ops.xla.multi_tensor_adam_.default
_adam_of_equal_counts = torch.ops.xla.multi_tensor_adam_.equal_counts
_sgd = torch.ops.xla.multi_tensor_sgd_.default

_TENSORS = frozenset((Tensor, Parameter))
_dtype, _is_on_the_cpu = attrgetter("dtype"), attrgetter("is_cpu")
_FLOATS = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))

# How PyTorch's implementation adds 1 to many counts.
_ONE = torch.tensor(1.0, device="cpu")


def register_steps() -> None:
    """Register the kernels of the operators that write their results."""
    for operator in (_adam, _adam_of_equal_counts, _sgd):
        name = operator.name()
        private.register_kernel(LIBRARY, name.removeprefix("xla::"), uncollected(recorder(name)))


def _are_plain(written: Iterable[list[Any]], grads: list[Tensor]) -> bool:
    """Return whether all are floating-point tensors on one `xla` device, and none is written twice, or read as well."""
    tensors = [*chain.from_iterable(written)]
    first, count = tensors[0], len(tensors)
    tensors += grads
    if first.device.type != "xla" or first.dtype not in _FLOATS or not {*map(type, tensors)} <= _TENSORS:
        return False
    if {*map(_dtype, tensors)} != {first.dtype} or len({*map(Tensor.get_device, tensors)}) > 1:
        return False
    memory = [*map(id, map(Tensor.untyped_storage, tensors))]
    own = {*memory[:count]}
    return len(own) == count and own.isdisjoint(memory[count:])


def _is_plain_number(*numbers: object) -> bool:
    return not any(isinstance(each, Tensor) for each in numbers)


def _numbers_of_steps(step: float, lr: float, beta1: float, beta2: float) -> tuple[float, float]:
    """Return the root of the second bias correction, and the size of a step, computed as PyTorch does."""
    return (1 - beta2**step) ** 0.5, (lr / (1 - beta1**step)) * -1


def as_one_adam(original: Callable[..., None]) -> Callable[..., None]:
    """Implement `torch.optim.adam._multi_tensor_adam`."""

    @functools.wraps(original)
    def multi_tensor_adam(
        params: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
        max_exp_avg_sqs: list[Tensor],
        state_steps: list[Tensor],
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
        **options: Any,
    ) -> None:
        lr, beta1, beta2 = options["lr"], options["beta1"], options["beta2"]
        maxima = max_exp_avg_sqs if options["amsgrad"] else []
        weight_decay = options["weight_decay"]
        written = params, exp_avgs, exp_avg_sqs, maxima
        if (
            torch.compiler.is_compiling()
            or not params
            or options["capturable"]
            or options["differentiable"]
            or grad_scale is not None
            or found_inf is not None
            or not _is_plain_number(lr, beta1, beta2, weight_decay, options["eps"])
            or not all(map(_is_on_the_cpu, state_steps))
            or not _are_plain(written, grads)
        ):
            original(
                params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, grad_scale, found_inf, **options
            )
            return
        private.add_to_each(state_steps, _ONE, alpha=1.0)
        steps = [*map(Tensor.item, state_steps)]
        decoupled = options["decoupled_weight_decay"]
        shared = (
            *written,
            grads,
            options["maximize"],
            1 - lr * weight_decay if weight_decay != 0 and decoupled else None,
            weight_decay if weight_decay != 0 and not decoupled else None,
            1 - beta1,
            beta2,
            1 - beta2,
            options["eps"],
        )
        if steps.count(steps[0]) == len(steps):
            _adam_of_equal_counts(*shared, *_numbers_of_steps(steps[0], lr, beta1, beta2))
        else:
            _adam(*shared, *map(list, zip(*(_numbers_of_steps(step, lr, beta1, beta2) for step in steps), strict=True)))
        private.increment_version([*params, *exp_avgs, *exp_avg_sqs, *maxima])

    return multi_tensor_adam


def as_one_sgd(original: Callable[..., None]) -> Callable[..., None]:
    """Implement `torch.optim.sgd._multi_tensor_sgd`."""

    @functools.wraps(original)
    def multi_tensor_sgd(
        params: list[Tensor],
        grads: list[Tensor],
        momentum_buffer_list: list[Any],  # `None` before the first step
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
        **options: Any,
    ) -> None:
        lr, momentum, dampening = options["lr"], options["momentum"], options["dampening"]
        weight_decay, maximize, nesterov = options["weight_decay"], options["maximize"], options["nesterov"]
        buffers = momentum_buffer_list if momentum != 0 else []
        if (
            torch.compiler.is_compiling()
            or not params
            or options["has_sparse_grad"]
            or grad_scale is not None
            or found_inf is not None
            or not _is_plain_number(lr, momentum, dampening, weight_decay)
            # PyTorch's implementation writes what Nesterov's rule adds to the gradients themselves.
            or (nesterov and momentum != 0 and weight_decay == 0 and not maximize)
            or not _are_plain((params, buffers), grads)
        ):
            original(params, grads, momentum_buffer_list, grad_scale, found_inf, **options)
            return
        penalty = weight_decay if weight_decay != 0 else None
        value = 1 - dampening if dampening != 0 else None
        _sgd(params, buffers, grads, maximize, penalty, momentum, value, nesterov, -lr)
        private.increment_version([*params, *buffers])

    return multi_tensor_sgd
