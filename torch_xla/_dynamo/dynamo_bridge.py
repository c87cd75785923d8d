"""The functions that PyTorch's registration of the backend "openxla" calls. Use `torch.compile(backend="openxla")`."""

from collections.abc import Callable, Sequence

import torch

from .._engine import config, metrics
from .._engine.compat import removed_names
from .._engine.compiled.dynamo import backend
from ..utils.buffer_donor_context import alias_with_buffer_donor_config as alias_with_buffer_donor_config
from .graph_helpers import Deduper as Deduper
from .graph_helpers import GraphInputMatcher as GraphInputMatcher
from .graph_helpers import NoneRemover as NoneRemover
from .graph_helpers import UnsupportedNodesCollector as UnsupportedNodesCollector

__getattr__ = removed_names.asked_of(__name__)

# The settings at the time of import.
dynamo_debug = config.dynamo_debug()
ptxla_debug = config.debug_level() > 0


def extract_compiled_graph(xla_model: torch.fx.GraphModule, xla_args: Sequence[object]) -> Callable[..., object]:
    """Return a callable that runs the FX graph `xla_model` on an `xla` device as one compiled operation.

    `xla_args` are the arguments of the first call. The graph holds functional aten operators, or it is a graph of
    Dynamo's, which is first traced to functional aten operators. Operators without a lowering are recorded one by one.

    >>> import torch, torch_xla
    >>> from torch.fx.experimental.proxy_tensor import make_fx
    >>> from torch_xla.core.dynamo_bridge import extract_compiled_graph
    >>> x = torch.ones(3, device="xla")
    >>> graph = make_fx(lambda x: (x * 2 + 1,))(x)
    >>> extract_compiled_graph(graph, (x,))(x)[0].tolist()
    [3.0, 3.0, 3.0]
    """
    return backend.extract_compiled_graph(xla_model, xla_args)


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Return whether `tensor` is on an `xla` device."""
    return tensor.device.type == "xla"


def extract_compiled_graph_helper(xla_model: torch.fx.GraphModule, xla_args: Sequence[object]) -> Callable[..., object]:
    """Call `extract_compiled_graph`."""
    return backend.extract_compiled_graph(xla_model, xla_args)


def get_fallback_ops() -> list[str]:
    """Return the operators that ran on the CPU so far, as in `["aten::nonzero"]`.

    >>> from torch_xla.core.dynamo_bridge import get_fallback_ops
    >>> isinstance(get_fallback_ops(), list)
    True
    """
    return metrics.fallback_names()
