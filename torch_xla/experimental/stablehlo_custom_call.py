"""Calls of what a platform brings itself, by name, and the placing of values in memory of the host."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._engine.interop import custom_calls


def stablehlo_custom_call(
    args: Sequence[Tensor],
    call_target: str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    has_side_effect: bool = False,
    backend_config: str = "",
    api_version: int = 0,
    frontend_attributes: dict[str, str] | None = None,
) -> Any:
    """Records StableHLO's `custom_call` of `call_target`; gives a tensor, or a list of them for several outputs.

    The platform has to know the target (`jax.ffi.register_ffi_target` brings one of your own); the program that holds
    one that it does not know fails when it is compiled, with XLA's words. It has no gradient.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.stablehlo_custom_call import stablehlo_custom_call
    >>> y = stablehlo_custom_call((torch.ones(4, device="xla"),), "mine", [(2,)], [torch.float32], api_version=2)
    >>> 'custom_call_target="mine"' in torch_xla._XLAC._get_xla_tensors_hlo([y])
    True
    """
    tensors = list(args)
    found = custom_calls.custom_call(
        tensors, call_target, output_shapes, output_dtypes, has_side_effect, backend_config, api_version,
        frontend_attributes,
    )  # fmt: skip
    return found[0] if len(found) == 1 else found


def extract_custom_call_outputs_shape_dtype(n: torch.fx.Node) -> tuple[list[torch.Size], list[torch.dtype]]:
    """Sizes and dtypes of what a node of a graph gives, as its description has them."""
    described = n.meta.get("val")
    tensors = [described] if isinstance(described, Tensor) else list(described or ())
    return [each.shape for each in tensors], [each.dtype for each in tensors]


def place_to_host(t: Tensor) -> Tensor:
    """The values of `t` in pinned memory of the host, from where the device reads them back with `place_to_device`.

    Within a program XLA moves them while it computes something else. It is differentiable: the gradient stays where it
    is. A CPU's memory is the host's, and nothing moves there.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.stablehlo_custom_call import place_to_device, place_to_host
    >>> place_to_device(place_to_host(torch.ones(2, device="xla"))) + 1
    tensor([2., 2.], device='xla:0')
    """
    result: Tensor = torch.ops.xla.place_to_host(t)
    return result


def place_to_device(t: Tensor) -> Tensor:
    """The values of `t` in memory of the device; see `place_to_host`."""
    result: Tensor = torch.ops.xla.place_to_device(t)
    return result


def to_host_backward(ctx: Any, grad: Tensor) -> Tensor:
    """The gradient of `place_to_host`: the same."""
    return grad


def to_device_backward(ctx: Any, grad: Tensor) -> Tensor:
    """The gradient of `place_to_device`: the same."""
    return grad
