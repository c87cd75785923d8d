"""The functions of `torch_xla._XLAC` that record operations, and those of XLA's builder."""

from collections.abc import Mapping, Sequence

import torch

from .._engine import interop, transfer
from .._engine import tensor as _tensor
from .._engine.compat.names.torch import define_quantized_operators
from ..amp.syncfree import _functional
from ..core import builder_shape
from ..core import xla_builder as builders

XlaBuilder = interop.XlaBuilder
XlaOp = interop.BuilderNode
XlaComputation = interop.BuilderComputation

_quantized = torch.ops.quantized_decomposed


def _xla_op_create_builder(name: str) -> XlaBuilder:
    """Return a builder of one computation."""
    return interop.XlaBuilder(name)


def _xla_op_param(builder: XlaBuilder, param_no: int, shape: builder_shape.Shape | builder_shape.Described) -> XlaOp:
    """Return a parameter of the computation; `shape` is a `core.xla_builder.Shape` or from `_xla_op_tensor_shape`."""
    return interop.builder_parameter(
        builder, param_no, shape.shape if isinstance(shape, builder_shape.Shape) else shape
    )


def _xla_op_create(builder: XlaBuilder, opname: str, operands: Sequence[XlaOp], args: Mapping[str, object]) -> XlaOp:
    """Return the operation that XLA calls `opname`."""
    return interop.builder_operation(opname, builder, tuple(operands), dict(args))


def _xla_op_build(name: str, root: XlaOp) -> XlaComputation:
    """Return the computation whose result is `root`."""
    return root.computation(name)


def _xla_op_shape(op: XlaOp) -> builder_shape.Described:
    """Return the shape of an operation's result."""
    return builder_shape.Shape(op.described).shape


def _xla_op_builder(op: XlaOp) -> XlaBuilder:
    """Return the builder of an operation."""
    return op.builder


def _xla_op_tensor_shape(tensor: torch.Tensor, device: str = "") -> builder_shape.Described:
    """Return the shape of a tensor on the device."""
    return builder_shape.tensor_shape(tensor, device).shape


def _xla_op_computation_from_module_proto(name: str, proto: bytes) -> XlaComputation:
    """Return the computation of a serialised HLO module."""
    return builders.computation_from_module_proto(name, proto)


def _xla_computation_text(computation: object) -> str:
    """Return a computation as HLO text."""
    return builders.get_computation_hlo(computation)


def _to_dlpack(input: torch.Tensor) -> object:
    """Return a DLPack capsule of a tensor; see `torch_xla.utils.dlpack`."""
    return transfer.to_dlpack(input)


def _from_dlpack(ext_data: object) -> torch.Tensor:
    """Return a tensor on the memory of a DLPack capsule; see `torch_xla.utils.dlpack`."""
    return transfer.from_dlpack(ext_data)


def _xla_optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """Put tensors behind a barrier that XLA moves no operation across."""
    _tensor.put_barrier(tensors)


def _xla_mark_tensor(
    input: torch.Tensor, name: str, pos: int, id: str, is_input: bool, attr: str | None = None
) -> torch.Tensor:
    """Mark a boundary of a composite; see `torch.ops.xla.mark_tensor`."""
    result: torch.Tensor = torch.ops.xla.mark_tensor(input, name, pos, id, is_input, attr)
    return result


def _xla_dynamic_expand(
    input: torch.Tensor, size: Sequence[int], src_tensor: torch.Tensor, src_dim: int, target_dim: int
) -> torch.Tensor:
    """Expand a tensor to sizes, one of them that of another tensor; see `torch.ops.xla.dynamic_expand`."""
    result: torch.Tensor = torch.ops.xla.dynamic_expand(input, size, src_tensor, src_dim, target_dim)
    return result


def _xla_dynamic_view(
    input: torch.Tensor,
    size: Sequence[int],
    src_tensor: torch.Tensor,
    src_dim: int,
    target_dim: int,
    mul_scaler: float,
) -> torch.Tensor:
    """View a tensor with sizes, one of them that of another tensor; see `torch.ops.xla.dynamic_view`."""
    result: torch.Tensor = torch.ops.xla.dynamic_view(input, size, src_tensor, src_dim, target_dim, mul_scaler)
    return result


def _dtype_of(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"expected the name of a dtype, such as 'int8' or 'torch.int8'; got {name!r}")
    return found


def _per_channel(axis: int | None) -> bool:
    return axis is not None and axis >= 0


def _xla_quantize_tensor(
    input: torch.Tensor,
    scale_list: Sequence[float],
    zero_point_list: Sequence[int],
    quant_min: int,
    quant_max: int,
    dtype: str,
    axis: int | None = None,
) -> torch.Tensor:
    """Quantise a tensor with one scale, or with one for each slice along `axis`."""
    return _by_operator("quantize", input, scale_list, zero_point_list, (quant_min, quant_max, _dtype_of(dtype)), axis)


def _xla_dequantize_tensor(
    input: torch.Tensor,
    scale_list: Sequence[float],
    zero_point_list: Sequence[int],
    quant_min: int,
    quant_max: int,
    dtype: str,
    axis: int | None = None,
) -> torch.Tensor:
    """Return what `_xla_quantize_tensor` quantised."""
    return _by_operator(
        "dequantize", input, scale_list, zero_point_list, (quant_min, quant_max, _dtype_of(dtype)), axis
    )


def _by_operator(
    operator: str,
    input: torch.Tensor,
    scale_list: Sequence[float],
    zero_point_list: Sequence[int],
    bounds: tuple[int, int, torch.dtype],
    axis: int | None,
) -> torch.Tensor:
    """Call `quantize_per_channel` or `quantize_per_tensor`, or the operators that do the opposite."""
    define_quantized_operators()
    if _per_channel(axis):
        scales = torch.tensor(scale_list, dtype=torch.float32, device=input.device)
        zeros = torch.tensor(zero_point_list, device=input.device)
        result: torch.Tensor = getattr(_quantized, f"{operator}_per_channel")(input, scales, zeros, axis, *bounds)
    else:
        result = getattr(_quantized, f"{operator}_per_tensor")(input, scale_list[0], zero_point_list[0], *bounds)
    return result


def _xla_cast_int4(weight: torch.Tensor, int_weight_values: Sequence[int]) -> torch.Tensor:
    """Return the numbers of four bits `int_weight_values` in the shape of `weight`, one in each int8."""
    return torch.tensor(list(int_weight_values), dtype=torch.int8, device=weight.device).reshape(weight.shape)


def _xla_sgd_optimizer_step_(
    found_inf: torch.Tensor,
    step: torch.Tensor,
    param: torch.Tensor,
    buf: torch.Tensor,
    d_p: torch.Tensor,
    weight_decay: float,
    momentum: float,
    lr: float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    """Take a step of SGD for one parameter; see `torch_xla.amp.syncfree`."""
    _functional.sgd_step(
        found_inf, [step], [param], [d_p], [buf], weight_decay=weight_decay, momentum=momentum, lr=lr,
        dampening=dampening, nesterov=nesterov, maximize=maximize,
    )  # fmt: skip


def _xla_adam_optimizer_step_(
    found_inf: torch.Tensor,
    step: torch.Tensor,
    param: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    max_exp_avg_sq: torch.Tensor | None,
    beta1: float,
    beta2: float,
    lr: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    use_adamw: bool,
) -> None:
    """Take a step of Adam or AdamW for one parameter; see `torch_xla.amp.syncfree`."""
    largest = [max_exp_avg_sq] if amsgrad and max_exp_avg_sq is not None else []
    _functional.adam_step(
        found_inf, [step], [param], [grad], [exp_avg], [exp_avg_sq], largest,
        amsgrad=amsgrad, beta1=beta1, beta2=beta2, lr=lr, weight_decay=weight_decay, eps=eps, maximize=maximize,
        use_adamw=use_adamw,
    )  # fmt: skip


# Names with an underscore, too: `from ... import *` takes what is listed here.
__all__ = ["XlaBuilder", "XlaComputation", "XlaOp"]
__all__ += [name for name, value in list(globals().items()) if getattr(value, "__module__", "") == __name__]
