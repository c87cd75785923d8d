"""The extension's functions about whole computations, placeholders and the memory that a step may take."""

from collections.abc import Sequence
from typing import Any

import jax
import torch

from .._engine import dtypes, export, interop, step
from .._engine import tensor as _tensor
from .._engine.export import LoweringContext as _LoweringContext
from .._engine.step import donation
from .._engine.tensor import value_of

Tensors = Sequence[torch.Tensor]


def _xla_user_computation(name: str, tensors: Tensors, computation: Any) -> list[torch.Tensor]:
    """Record a computation of `core.xla_builder` as one operation called `name`, and return all of its results.

    >>> import torch, torch_xla, torch_xla.core.xla_builder as xb
    >>> shape = xb.Shape.create(xb.Type.F32, (2,))
    >>> twice = xb.create_computation("twice", lambda x: x + x, (shape,))
    >>> torch_xla._XLAC._xla_user_computation("xla::twice", [torch.ones(2, device="xla")], twice)
    [tensor([2., 2.], device='xla:0')]
    """
    found = interop.call_jax(computation, [step.on_xla(each) for each in tensors], {}, name.removeprefix("xla::"))
    return list(jax.tree.leaves(found))


def _xla_create_placeholder_tensor(shape: Any) -> torch.Tensor:
    """Return a tensor of this shape (`core.xla_builder.Shape`) that holds no memory."""
    described = getattr(shape, "shape", shape)
    return _tensor.placeholder(described.shape, dtypes.to_torch(described.dtype))


def _is_placecholder(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds no memory, as those of `core.xla_builder.create_placeholder_tensor`."""
    return _tensor.is_placeholder(step.on_xla(tensor))


def _xla_custom_call(
    tensors: Tensors,
    target: str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    has_side_effect: bool,
    backend_config: str,
    api_version: int,
    frontend_attributes: dict[str, str],
) -> list[torch.Tensor]:
    """Record StableHLO's `custom_call`; see `torch_xla.experimental.stablehlo_custom_call`."""
    return interop.custom_call(
        [step.on_xla(each) for each in tensors], target, output_shapes, output_dtypes, has_side_effect,
        backend_config, api_version, frontend_attributes,
    )  # fmt: skip


def _xla_tpu_custom_call(
    tensors: Tensors, payload: str, output_shapes: Sequence[Sequence[int]], output_dtypes: Sequence[torch.dtype]
) -> list[torch.Tensor]:
    """Record the kernel that `custom_kernel.trace_pallas` lowered; only TPUs support such a call."""
    taken = [step.on_xla(each) for each in tensors]
    return interop.custom_call(taken, "tpu_custom_call", output_shapes, output_dtypes, config=payload)


def _run_stablehlo(bytecode: str | bytes, tensors: Tensors) -> list[torch.Tensor]:
    """Run a module of StableHLO on these tensors; see `torch_xla.stablehlo.stablehlo_function`."""
    return list(export.function_of_module(bytecode)(*tensors))


def _set_buffer_donation(tensor: torch.Tensor, should_donate: bool) -> bool:
    """Let the next step that reads `tensor` take its memory, although the tensor is still referenced.

    Memory without a reference is taken without a mark. Reading a tensor whose memory was taken raises `RuntimeError`.
    Returns False, and sets no mark, for a tensor that is not computed yet.

    >>> import torch, torch_xla
    >>> x = torch.ones(4, device="xla")
    >>> torch_xla.sync()
    >>> torch_xla._XLAC._set_buffer_donation(x, True), torch_xla._XLAC._get_buffer_donation(x)
    (True, True)
    """
    return donation.mark(value_of(step.on_xla(tensor)), should_donate)


def _get_buffer_donation(tensor: torch.Tensor) -> bool:
    """Return whether the memory of `tensor` is marked."""
    return isinstance(value_of(step.on_xla(tensor)), donation.Donor)


def _xla_set_enable_alias_with_buffer_donor_config(enable_user_config_alias: bool = False, device: str = "") -> None:
    """Set whether the program uses marks. They have an effect in any case."""
    donation.asked_for = bool(enable_user_config_alias)


def _xla_get_enable_alias_with_buffer_donor_config(device: str = "") -> bool:
    """Return whether the program has declared that it uses marks."""
    return donation.asked_for


class lowering:  # noqa: N801
    """Lower a program to embed it in another one: `lowering.LoweringContext`."""

    LoweringContext = _LoweringContext
