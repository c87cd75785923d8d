"""Run one recorded operator with PyTorch on the CPU."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...compat.names.torch import OpOverload, get_decompositions, schema_of
from ...dispatch.op_schema import resolve
from ...ir.call_plan import Number, Operand, Plan
from ...ir.view.geometry import Geometry
from ...lowering.machinery.barrier import BARRIER
from ...lowering.machinery.lower_call import flatten
from ...lowering.views.storage_access import READ, WRITE


class NotRunnable(Exception):
    """PyTorch has no kernel of its own for this operator on the CPU."""


# Results that PyTorch leaves unwritten in part: the elements behind the end of shorter sequences.
UNSPECIFIED = {"aten._ctc_loss.default": (1,), "aten._ctc_loss.Tensor": (1,)}

RANDOM = "it draws random numbers, others on each platform"


def run(plan: Plan, operands: Sequence[Tensor], numbers: Sequence[float | int]) -> list[Tensor | None]:
    """Return the results of the call, flat, as PyTorch on the CPU computes them; `None` for one that may be anything.

    Raises `NotRunnable` if PyTorch cannot compute them, or not the same.
    """
    args, kwargs = plan.arguments
    filled = [_filled(argument, operands, numbers) for argument in args]
    named = {name: _filled(argument, operands, numbers) for name, argument in kwargs.items()}
    own = _OWN.get(plan.op)
    if own is not None:
        results = own(*filled, **named)
    elif plan.draws:
        raise NotRunnable(RANDOM)
    else:
        results = _run_operator(plan.op[0] if isinstance(plan.op, tuple) else plan.op, filled, named)
    pairs = list(zip(flatten(results, plan), plan.outputs, strict=True))
    if any(result is not None and tuple(result.shape) != spec.size for result, spec in pairs):
        raise NotRunnable("PyTorch's results have other shapes")
    unspecified = UNSPECIFIED.get(str(plan.op), ())
    return [
        None if result is None or part in unspecified else result.to(spec.dtype)
        for part, (result, spec) in enumerate(pairs)
    ]


def _run_operator(op: object, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    if not isinstance(op, OpOverload):
        raise NotRunnable(f"{op} is not PyTorch's")
    # In-place operators have arguments that the functional ones, whose rules compute them, lack at the end.
    args = args[: sum(not argument.kwarg_only for argument in schema_of(op).arguments)]
    try:
        return op(*args, **kwargs)
    except NotImplementedError as error:
        decomposition = get_decompositions([op]).get(op)
        if not callable(decomposition):
            raise NotRunnable(f"{op} has no kernel on the CPU") from error
        try:
            return decomposition(*args, **kwargs)
        except NotImplementedError as deeper:
            raise NotRunnable(f"{op} has no kernel on the CPU") from deeper
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise NotRunnable(f"PyTorch on the CPU raises: {str(error).splitlines()[0]}") from error


def _filled(argument: object, operands: Sequence[Tensor], numbers: Sequence[float | int]) -> Any:
    if isinstance(argument, Operand):
        return operands[argument.index]
    if isinstance(argument, Number):
        return numbers[argument.index]
    if isinstance(argument, (list, tuple)):
        return [_filled(element, operands, numbers) for element in argument]
    return argument


def in_its_order(tensor: Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Return a copy with these strides; they are the order of the elements in the storage that is copied."""
    return torch.empty_strided(size, stride, dtype=tensor.dtype).copy_(tensor)


def _shown(base: Tensor, view: Geometry, dtype: torch.dtype, conj: bool, neg: bool) -> Tensor:
    shown = torch.empty(0, dtype=dtype).set_(base.untyped_storage(), view.offset, view.size, view.stride)  # type: ignore[call-overload]
    shown = shown.conj() if conj else shown
    return torch._neg_view(shown) if neg else shown


def _begun(view: Geometry, offset: int | None) -> Geometry:
    return view if offset is None else replace(view, offset=offset)


def _read(
    array: Tensor,
    base: Geometry,
    view: Geometry,
    base_dtype: torch.dtype,
    dtype: torch.dtype,
    conj: bool,
    neg: bool,
    offset: int | None = None,
) -> Tensor:
    whole = in_its_order(array, base.size, base.stride)
    return _shown(whole, _begun(view, offset), dtype, conj, neg).clone().resolve_conj()


def _write(
    array: Tensor,
    value: Tensor,
    base: Geometry,
    view: Geometry,
    base_dtype: torch.dtype,
    dtype: torch.dtype,
    conj: bool,
    neg: bool,
    offset: int | None = None,
) -> Tensor:
    written = in_its_order(array, base.size, base.stride)
    _shown(written, _begun(view, offset), dtype, conj, neg).copy_(value)
    return written


def _gradients(forward: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor, mask: Sequence[bool]) -> Any:
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        result = forward(*leaves)
    wanted = [leaf for leaf, wants in zip(leaves, mask, strict=True) if wants]
    found = iter(torch.autograd.grad(result, wanted, grad))
    return tuple(next(found) if wants else None for wants in mask)


def _linear_backward(x: Tensor, grad: Tensor, weight: Tensor, mask: Sequence[bool]) -> object:
    bias = torch.zeros(weight.shape[0], dtype=weight.dtype)
    return _gradients(torch.nn.functional.linear, (x, weight, bias), grad, mask)


def _matmul_backward(grad: Tensor, x: Tensor, other: Tensor, mask: Sequence[bool]) -> object:
    return _gradients(torch.matmul, (x, other), grad, mask)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, None, None, int, int, None, None, None]:
    if dropout_p:
        raise NotRunnable(RANDOM)
    output = _attended(query, key, value, attn_bias, is_causal, scale)
    groups = query.shape[-3] // key.shape[-3]
    scores = query.float() @ key.repeat_interleave(groups, -3).float().mT
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_bias is not None:
        scores = scores.masked_fill(~attn_bias, -torch.inf) if attn_bias.dtype is torch.bool else scores + attn_bias
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).tril().logical_not(), -torch.inf)
    return output, scores.logsumexp(-1), None, None, query.shape[-2], key.shape[-2], None, None, None


def _attended(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, is_causal: bool, scale: float | None
) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, bias, is_causal=is_causal, scale=scale, enable_gqa=query.shape[-3] != key.shape[-3]
        )


def _attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    mask: Sequence[bool],
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: None,
    cum_seq_k: None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> Any:
    if dropout_p:
        raise NotRunnable(RANDOM)
    if attn_bias is None or not attn_bias.is_floating_point():

        def without(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return _attended(q, k, v, attn_bias, is_causal, scale)

        return (*_gradients(without, (query, key, value), grad, (True, True, True)), None)

    def forward(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
        return _attended(q, k, v, b, is_causal, scale)

    found = _gradients(forward, (query, key, value, attn_bias), grad, (True,) * 4)
    return found if mask[3] else (*found[:3], torch.zeros_like(attn_bias))


# Operators of our own, and those of PyTorch's that have kernels on other devices only.
_OWN: dict[Hashable, Callable[..., object]] = {
    READ: _read,
    WRITE: _write,
    BARRIER: lambda arrays: arrays,
    resolve("aten::_scaled_dot_product_fused_attention_overrideable"): _attention,
    resolve("aten::_scaled_dot_product_fused_attention_overrideable_backward"): _attention_backward,
    resolve("aten::linear_backward"): _linear_backward,
    resolve("aten::matmul_backward"): _matmul_backward,
}
