"""Graphs that `torch.compile(f).aot_compile(...)` compiles ahead of their first call, to be saved and loaded.

The graph is saved as Dynamo found it. A process that loads it compiles it again without Dynamo; XLA's executables
come from the disk cache, which `torch.compiler.save_cache_artifacts` carries to another machine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule

from ...compat.names import torch_saved_graphs
from ...compat.names.torch_saved_graphs import SerializableCallable
from .backend import compile_unsaved


@dataclass
class SavedEntry:
    """A saved graph that replaces an entry of AOTAutograd's cache, where Inductor was asked to compile."""

    data: bytes
    guards_expr: object = None
    sanitized_aot_config: object = None

    def wrap_post_compile(self, *_: object) -> Callable[[list[object]], object]:
        """Return the graph, compiled: takes its arguments in one list."""
        compiled = _restored(self.data)
        return lambda arguments: compiled(*arguments)


class SavedGraph(SerializableCallable):
    """A compiled graph that PyTorch can save."""

    def __init__(self, data: bytes, compiled: Callable[..., object]) -> None:
        self._data = data
        self._compiled = compiled

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._compiled(*args, **kwargs)

    def serialize(self) -> SavedEntry:
        """Return what is saved where Inductor was asked to compile."""
        return SavedEntry(self._data)

    @classmethod
    def serialize_compile_artifacts(cls, fn: Any) -> bytes:
        """Return what is saved where this backend was asked by its name."""
        data: bytes = fn._data
        return data

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> "SavedGraph":
        """Compile what was saved."""
        return cls(data, _restored(data))


def compile_to_save(module: GraphModule, examples: Sequence[object]) -> SavedGraph:
    """Compile a graph, and keep what it takes to save it."""
    data = torch_saved_graphs.pickled(module, examples)  # compiling changes the graph
    return SavedGraph(data, _compiled(module, examples))


def _restored(data: bytes) -> Callable[..., object]:
    with torch_saved_graphs.unpickled(data) as (module, examples):
        return _compiled(module, examples)


def _compiled(module: GraphModule, examples: Sequence[object]) -> Callable[..., Any]:
    with torch_saved_graphs.without_entries():
        return compile_unsaved(module, examples)
