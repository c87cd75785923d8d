"""Compile equal layers once: run a stack of them as a loop on the device."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from .._engine.compiled.loops import scan_layers as _layers
from .scan import default_partition

# What was traced of pure layers, by the first of them. `clear()` forgets it.
_ONE_LAYER_CACHE = _layers.known_layers


def scan_layers(
    layers: Iterable[nn.Module],
    input_data: object,
    partition_fn: Callable[..., object] = default_partition,
    is_layer_pure: bool = False,
) -> Any:
    """Apply `layers` one after the other, as `nn.Sequential` does, in a program that holds one of them.

    Each layer takes the result of the previous one: tensors nested as in `input_data`, of the same sizes and dtypes.
    Parameters get their gradients, a layer may write to its buffers, and dropout differs from layer to layer. Hooks
    must be the same on all layers; they run when the layer is traced. `partition_fn` and `is_layer_pure` are as for
    `scan`. Without layers the result is `input_data`.

    Raises `ValueError` if a layer differs from the first one, with the layer and the difference.

    >>> import torch
    >>> from torch_xla.experimental.scan_layers import scan_layers
    >>> layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(8)).to("xla")
    >>> scan_layers(layers, torch.ones(2, 4, device="xla")).sum().backward()
    >>> layers[0].weight.grad.shape
    torch.Size([4, 4])
    """
    return _layers.scan_layers(layers, input_data, partition_fn, is_layer_pure)
