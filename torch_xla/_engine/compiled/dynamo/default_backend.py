"""`torch.compile` without a backend: graphs that hold a tensor on `xla` go to openxla, all others to Inductor.

The devices of the graph decide, each time a graph is compiled. PyTorch's default backend stays Inductor, so one process
may compile models on the CPU, on CUDA and on `xla`.
"""

from collections.abc import Iterator, Sequence

import torch
from torch.fx import GraphModule

from ...compat.names.torch_dynamo import route_inductor
from .registration import compile_module


def install() -> None:
    """Route what `torch.compile` gives to Inductor, by name or by default."""
    route_inductor(holds_xla, compile_module)


def holds_xla(module: GraphModule, examples: Sequence[object]) -> bool:
    """Return whether an input of a graph, a parameter of it, or a value that it makes is on an `xla` device."""
    return any(isinstance(each, torch.Tensor) and each.device.type == "xla" for each in _tensors(module, examples))


def _tensors(module: GraphModule, examples: Sequence[object]) -> Iterator[object]:
    yield from examples
    yield from module.parameters()
    yield from module.buffers()
    for each in module.modules():
        if isinstance(each, GraphModule):  # a body of a checkpoint, loop or branch is a graph of its own
            for node in each.graph.nodes:
                made = node.meta.get("example_value")
                yield from made if isinstance(made, (tuple, list)) else (made,)
