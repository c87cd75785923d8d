"""Call custom targets of a platform by name, and place values in host memory."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .._engine import interop


def stablehlo_custom_call(
    args: Sequence[Tensor],
    call_target: str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    has_side_effect: bool = False,
    backend_config: str = "",
    api_version: int = 0,
    frontend_attributes: dict[str, str] | None = None,
) -> Tensor | list[Tensor]:
    """Record StableHLO's `custom_call` of `call_target`; return a tensor, or a list of tensors for several outputs.

    The platform must know the target; `jax.ffi.register_ffi_target` registers your own. A program with an unknown
    target fails when it is compiled, with XLA's error. The call has no gradient.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.stablehlo_custom_call import stablehlo_custom_call
    >>> y = stablehlo_custom_call((torch.ones(4, device="xla"),), "mine", [(2,)], [torch.float32], api_version=2)
    >>> 'custom_call_target="mine"' in torch_xla._XLAC._get_xla_tensors_hlo([y])
    True
    """
    tensors = list(args)
    found = interop.custom_call(
        tensors, call_target, output_shapes, output_dtypes, has_side_effect, backend_config, api_version,
        frontend_attributes,
    )  # fmt: skip
    return found[0] if len(found) == 1 else found


def extract_custom_call_outputs_shape_dtype(n: torch.fx.Node) -> tuple[list[torch.Size], list[torch.dtype]]:
    """Return sizes and dtypes of the results of a graph node, from its metadata."""
    described = n.meta.get("val")
    tensors = [described] if isinstance(described, Tensor) else list(described or ())
    return [each.shape for each in tensors], [each.dtype for each in tensors]


def place_to_host(t: Tensor) -> Tensor:
    """Copy the values of `t` to pinned memory of the host; `place_to_device` copies them back to the device.

    Within a program, XLA moves them while it computes other operations. Gradients flow through and are not moved. On a
    CPU, whose memory is the host's, nothing moves.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.stablehlo_custom_call import place_to_device, place_to_host
    >>> place_to_device(place_to_host(torch.ones(2, device="xla"))) + 1
    tensor([2., 2.], device='xla:0')
    """
    result: Tensor = torch.ops.xla.place_to_host(t)
    return result


def place_to_device(t: Tensor) -> Tensor:
    """Copy the values of `t` to memory of the device; see `place_to_host`."""
    result: Tensor = torch.ops.xla.place_to_device(t)
    return result


def to_host_backward(ctx: object, grad: Tensor) -> Tensor:
    """Return the gradient of `place_to_host`: `grad` itself."""
    return grad


def to_device_backward(ctx: object, grad: Tensor) -> Tensor:
    """Return the gradient of `place_to_device`: `grad` itself."""
    return grad
