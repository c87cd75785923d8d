"""The extension's functions about whole computations, placeholders and the memory that a step may take."""

from collections.abc import Sequence
from typing import Any

import jax
import torch

from .._engine import dtypes
from .._engine.export import exported_calls
from .._engine.export.lowering_context import LoweringContext as _LoweringContext
from .._engine.interop import custom_calls, jax_functions
from .._engine.step import pending_graph, user_donation
from .._engine.tensor import placeholder_tensors
from .._engine.tensor.storage import value_of

Tensors = Sequence[torch.Tensor]


def _xla_user_computation(name: str, tensors: Tensors, computation: Any) -> list[torch.Tensor]:
    """Records a computation of `core.xla_builder` as one operation called `name`; gives all of its results.

    >>> import torch, torch_xla, torch_xla.core.xla_builder as xb
    >>> shape = xb.Shape.create(xb.Type.F32, (2,))
    >>> twice = xb.create_computation("twice", lambda x: x + x, (shape,))
    >>> torch_xla._XLAC._xla_user_computation("xla::twice", [torch.ones(2, device="xla")], twice)
    [tensor([2., 2.], device='xla:0')]
    """
    found = jax_functions.call(
        computation, [pending_graph.on_xla(each) for each in tensors], {}, name.removeprefix("xla::")
    )
    return list(jax.tree.leaves(found))


def _xla_create_placeholder_tensor(shape: Any) -> torch.Tensor:
    """A tensor of this shape (`core.xla_builder.Shape`) that holds no memory."""
    described = getattr(shape, "shape", shape)
    return placeholder_tensors.placeholder(described.shape, dtypes.to_torch(described.dtype))


def _is_placecholder(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds no memory: what `core.xla_builder.create_placeholder_tensor` makes."""
    return placeholder_tensors.is_placeholder(pending_graph.on_xla(tensor))


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
    """Records StableHLO's `custom_call`; see `torch_xla.experimental.stablehlo_custom_call`."""
    return custom_calls.custom_call(
        [pending_graph.on_xla(each) for each in tensors], target, output_shapes, output_dtypes, has_side_effect,
        backend_config, api_version, frontend_attributes,
    )  # fmt: skip


def _xla_tpu_custom_call(
    tensors: Tensors, payload: str, output_shapes: Sequence[Sequence[int]], output_dtypes: Sequence[torch.dtype]
) -> list[torch.Tensor]:
    """Records the kernel that `custom_kernel.trace_pallas` lowered; a TPU alone knows such a call."""
    taken = [pending_graph.on_xla(each) for each in tensors]
    return custom_calls.custom_call(taken, "tpu_custom_call", output_shapes, output_dtypes, config=payload)


def _run_stablehlo(bytecode: str | bytes, tensors: Tensors) -> list[torch.Tensor]:
    """The results of a module of StableHLO for these tensors; see `torch_xla.stablehlo.stablehlo_function`."""
    return list(exported_calls.function_of(bytecode)(*tensors))


def _set_buffer_donation(tensor: torch.Tensor, should_donate: bool) -> bool:
    """Marks the memory of `tensor` as one that the next step that reads it may take, although somebody holds it.

    Memory that nobody holds any more is taken without a mark. What was taken must not be read again: whoever does is
    told so by a `RuntimeError`. False, and no mark, for a tensor that is not computed yet.

    >>> import torch, torch_xla
    >>> x = torch.ones(4, device="xla")
    >>> torch_xla.sync()
    >>> torch_xla._XLAC._set_buffer_donation(x, True), torch_xla._XLAC._get_buffer_donation(x)
    (True, True)
    """
    return user_donation.mark(value_of(pending_graph.on_xla(tensor)), should_donate)


def _get_buffer_donation(tensor: torch.Tensor) -> bool:
    """Whether the memory of `tensor` is marked."""
    return isinstance(value_of(pending_graph.on_xla(tensor)), user_donation.Donor)


def _xla_set_enable_alias_with_buffer_donor_config(enable_user_config_alias: bool = False, device: str = "") -> None:
    """Says that marks are used. They count in any case."""
    user_donation.asked_for = bool(enable_user_config_alias)


def _xla_get_enable_alias_with_buffer_donor_config(device: str = "") -> bool:
    """Whether it was said that marks are used."""
    return user_donation.asked_for


class lowering:  # noqa: N801
    """What a program becomes, for those who embed it in another: `lowering.LoweringContext`."""

    LoweringContext = _LoweringContext
