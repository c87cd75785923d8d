"""Private names of PyTorch that saving a graph of Dynamo needs (`torch.compile(f).aot_compile`), and why."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch._dynamo.aot_compile_types import SerializableCallable as SerializableCallable
from torch._functorch import config as functorch_config
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx._graph_pickler import GraphPickler, Options
from torch.fx.experimental.symbolic_shapes import ShapeEnv


def is_saving() -> bool:
    """Return whether the graph that is being compiled must be one that can be saved."""
    return bool(functorch_config.bundled_autograd_cache)


@contextlib.contextmanager
def without_entries() -> Iterator[None]:
    """Return a block in which AOTAutograd makes no entry for its cache: entries hold Inductor's code alone."""
    with functorch_config.patch(bundled_autograd_cache=False, force_autograd_cache=False, strict_autograd_cache=False):
        yield


def pickled(module: GraphModule, examples: Sequence[object]) -> bytes:
    """Return the bytes of a graph of PyTorch's functions and of its inputs, which are fake tensors and sizes."""
    options = Options(ops_filter=None, node_metadata_key_filter=_is_kept)
    data: bytes = GraphPickler.dumps((module, list(examples)), options)
    return data


def _is_kept(key: str) -> bool:
    """Return whether a note of Dynamo about a node is saved: not values, nor what refers to the user's objects."""
    return key not in ("example_value", "grapharg", "tensor_dict") and not key.endswith("_stack")


@contextlib.contextmanager
def unpickled(data: bytes) -> Iterator[tuple[GraphModule, list[object]]]:
    """Return a block in which the graph of `pickled` may be compiled, with the graph and its inputs."""
    fake_mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    loaded: Any = GraphPickler.loads(data, fake_mode)
    module, examples = loaded
    module.recompile()
    # AOTAutograd asks a graph that has this for the sources of its inputs, to guard them, and they are not saved:
    # the guards of Dynamo are, and say more.
    vars(module).pop("_param_name_to_source", None)
    with tracing(TracingContext(fake_mode)):
        yield module, examples
