"""Equal layers compiled once: a stack of them as a loop on the device."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from .._engine.compiled.loops import scan_layers as _layers
from .scan import default_partition


def scan_layers(
    layers: Iterable[nn.Module],
    input_data: Any,
    partition_fn: Callable[..., Any] = default_partition,
    is_layer_pure: bool = False,
) -> Any:
    """Applies `layers` one after the other, as `nn.Sequential` does, in a program that holds one of them.

    Each takes what the one before returned: tensors nested as in `input_data`, of the same sizes and dtypes. Parameters
    get their gradients, buffers that a layer writes to are written, dropout differs from layer to layer, and hooks that
    all layers have run when the layer is traced. `partition_fn` and `is_layer_pure` are as for `scan`. No layer: the
    result is `input_data`.

    Raises `ValueError` with the layer that differs from the first one, and in what.

    >>> import torch
    >>> from torch_xla.experimental.scan_layers import scan_layers
    >>> layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(8)).to("xla")
    >>> scan_layers(layers, torch.ones(2, 4, device="xla")).sum().backward()
    >>> layers[0].weight.grad.shape
    torch.Size([4, 4])
    """
    return _layers.scan_layers(layers, input_data, partition_fn, is_layer_pure)
