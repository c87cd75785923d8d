"""Abstract evaluation: sizes, strides, dtypes and errors of an operator, from PyTorch's meta kernels."""

from dataclasses import dataclass
from typing import Any

import torch

from ..compat.names import torch as private
from ..compat.names.torch import pytree, schema_of
from ..ir.value_spec import Spec, contiguous_stride, spec_of
from ..ir.view.geometry import Geometry
from . import missing_meta_kernels
from .op_schema import Form, Operator, overload_for
from .tensor_iterator import stride_of_result

# Operators whose meta kernels leave the order of the result to the device, and which of their arguments PyTorch's
# devices then ask for it.
_ORDERED_AS = {
    "aten::convolution": slice(2),
    "aten::reflection_pad2d_backward": slice(1, 2),
    "aten::reflection_pad3d": slice(1),
    "aten::reflection_pad3d_backward": slice(1, 2),
    "aten::replication_pad2d": slice(1),
    "aten::replication_pad2d_backward": slice(1, 2),
    "aten::replication_pad3d": slice(1),
    "aten::replication_pad3d_backward": slice(1, 2),
}


@dataclass(frozen=True, slots=True)
class Inferred:
    """The specs of a call's results, returned or written, in order, and how they nest (see `Plan.structure`)."""

    outputs: tuple[Spec, ...]
    structure: tuple[int, ...]
    nested: bool  # whether the operator returns a tuple or list rather than one tensor
    constants: tuple[Any, ...] = ()  # per result, what it is if it is no tensor


def to_meta(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same size, stride and dtype without memory."""
    meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    if tensor.dtype.is_complex and tensor.is_conj():
        meta = torch._conj(meta)
    return meta


def infer(operator: Operator, args: tuple[object, ...], kwargs: dict[str, Any]) -> Inferred:
    """Run the call on meta tensors. Raise PyTorch's errors, and `NotImplementedError` without a kernel."""
    memo: dict[int, torch.Tensor] = {}

    def convert(leaf: object) -> Any:
        if isinstance(leaf, torch.Tensor):
            if leaf.device.type != "xla":
                return leaf
            # The same tensor twice must stay the same tensor: `x.add_(x)`.
            return memo.setdefault(id(leaf), to_meta(leaf))
        if isinstance(leaf, torch.device):
            return torch.device("meta")
        return None if isinstance(leaf, torch.Generator) else leaf

    of_the_cpu = schema_of(operator.overload).name not in missing_meta_kernels.LIKE_CUDA
    with private.without_modes(), torch.no_grad(), private.meta_kernels_for_the_cpu(of_the_cpu):
        meta_args, meta_kwargs = pytree.tree_map(convert, (args, kwargs))
        if meta_kwargs.get("pin_memory"):
            meta_kwargs["pin_memory"] = False  # there is nothing to pin
        kernel = missing_meta_kernels.KERNELS.get(operator.name) or overload_for(operator, meta_args)
        result: Any = kernel(*meta_args, **meta_kwargs)
        if operator.name in _ORDERED_AS:
            result = _ordered_as(result, meta_args[_ORDERED_AS[operator.name]])
        elif _is_ordered_by_operands(operator) and isinstance(result, torch.Tensor):
            result = _ordered_by(result, [leaf for leaf in memo.values() if leaf.dim()])
    if operator.form is Form.INPLACE:
        result = _written(operator, meta_args, meta_kwargs)
        pairs = zip(*map(pytree.tree_leaves, (_written(operator, args, kwargs), result)), strict=True)
        for before, after in pairs:
            # Some of PyTorch's meta kernels resize what an operand would enlarge; its kernels refuse to.
            if isinstance(after, torch.Tensor) and after.shape != before.shape:
                raise RuntimeError(
                    f"output with shape {list(before.shape)} doesn't match the broadcast shape {list(after.shape)}"
                )
        outputs, structure = _describe(result, exact=True)
        return Inferred(outputs, structure if len(structure) > 1 or structure[0] != -1 else (-1,), True)
    nested = isinstance(result, (tuple, list))
    returns = schema_of(operator.overload).returns
    if nested and len(returns) == 1 and str(returns[0].type).startswith("List"):
        outputs, _ = _describe(tuple(result), exact=False)
        return Inferred(outputs, (len(result),), True)
    results = result if nested else (result,)
    outputs, structure = _describe(results, exact=False)
    constants = tuple(r if isinstance(r, (int, float)) else None for r in results)
    return Inferred(outputs, structure, nested, constants)


def _ordered_as(result: torch.Tensor, operands: Any) -> torch.Tensor:
    if len(operands) == 2 and result.dim() == 5 and result.dtype is torch.float64:
        return result  # convolutions of volumes in double precision have no kernel for another order
    orders = (private.suggest_memory_format(operand) for operand in operands)
    order = next((order for order in orders if order is not torch.contiguous_format), torch.contiguous_format)
    return result.contiguous(memory_format=order)


def _is_ordered_by_operands(operator: Operator) -> bool:
    # A copy has the order that it is asked for; its meta kernel widens nothing.
    return torch.Tag.pointwise in operator.overload.tags and operator.name != "aten::clone"


def _ordered_by(result: torch.Tensor, operands: list[torch.Tensor]) -> torch.Tensor:
    """Return the result of an operator on each element, in the order that PyTorch's devices give it.

    PyTorch's meta kernels widen narrow floats first, and so forget the order of operands that were expanded.
    """
    size, narrow = tuple(result.shape), {torch.bfloat16, torch.float16}
    if len({x.dtype for x in operands}) != 1 or operands[0].dtype not in narrow:
        return result
    if all(Geometry(tuple(x.shape), x.stride()).is_dense() for x in operands):
        return result
    if torch.broadcast_shapes(*(x.shape for x in operands)) != size:
        return result
    missing = [len(size) - x.dim() for x in operands]
    spread = [
        x.as_strided((1,) * more + x.shape, (0,) * more + x.stride()) for more, x in zip(missing, operands, strict=True)
    ]
    return result.new_empty_strided(size, stride_of_result(size, spread))


def _written(operator: Operator, args: tuple[object, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(args[where] if isinstance(where, int) else kwargs.get(where) for where in operator.written)


def _describe(results: Any, exact: bool) -> tuple[tuple[Spec, ...], tuple[int, ...]]:
    outputs: list[Spec] = []
    structure: list[int] = []
    for result in results:
        if isinstance(result, torch.Tensor):
            outputs.append(_spec(result, exact))
            structure.append(-1)
        elif isinstance(result, (list, tuple)):
            outputs.extend(_spec(r, exact) for r in result)
            structure.append(len(result))
        elif result is None or isinstance(result, (int, float)):
            structure.append(-2)
        else:
            raise NotImplementedError(f"a result of type {type(result).__name__}")
    return tuple(outputs), tuple(structure)


def _spec(meta: torch.Tensor, exact: bool) -> Spec:
    size = tuple(meta.shape)
    stride = tuple(meta.stride())
    if exact or not Geometry(size, stride).is_dense():
        # A written tensor brings its own geometry; what the rule computes for it has the plain one. A new tensor has
        # memory of its own, which a layout with gaps would waste.
        stride = contiguous_stride(size) if not exact else stride
    return spec_of(size, stride, meta.dtype)
