"""The pending operations as text: StableHLO, HLO, and our own listing."""

import io
from collections.abc import Sequence

import torch

from .. import config, dtypes
from ..compat.names.torch import address_of
from ..compile import program_text
from ..ir.graph_text import to_dot, to_text
from ..tensor.storage import value_of
from .pending_graph import graph_of, is_pending

# Whether the listing shows the user's line of each operation.
_show_lines = False


def show_lines(yes: bool) -> None:
    """Make `ir_text` show the user's line of each operation, or not."""
    global _show_lines
    _show_lines = yes


def shows_lines() -> bool:
    """Return whether `ir_text` shows the user's line of each operation."""
    return _show_lines or config.ir_debug() or config.hlo_debug()


def ir_text(tensors: Sequence[torch.Tensor]) -> str:
    """Return the graph of `tensors` as a listing; without tensors, of everything recorded on this thread's device."""
    pending = graph_of(tensors)
    shown = (pending.lines, pending.scopes) if shows_lines() else ()
    return to_text(pending.graph, pending.numbers, *shown)


def ir_dot(tensors: Sequence[torch.Tensor]) -> str:
    """Return the same for Graphviz."""
    pending = graph_of(tensors)
    return to_dot(pending.graph, pending.numbers)


def stablehlo_text(tensors: Sequence[torch.Tensor]) -> str:
    """Return the graph as StableHLO."""
    return program_text.stablehlo(graph_of(tensors).lowered())


def stablehlo_bytecode(tensors: Sequence[torch.Tensor]) -> bytes:
    """Return the graph as MLIR bytecode of StableHLO."""
    module = graph_of(tensors).lowered().compiler_ir("stablehlo")
    with io.BytesIO() as file:
        module.operation.write_bytecode(file)
        return file.getvalue()


def hlo_text(tensors: Sequence[torch.Tensor]) -> str:
    """Return the graph as HLO text, before XLA optimises it."""
    return program_text.hlo(graph_of(tensors).lowered())


def hlo_bytes(tensors: Sequence[torch.Tensor]) -> bytes:
    """Return the graph as a serialised HLO module."""
    serialised: bytes = graph_of(tensors).lowered().compiler_ir("hlo").as_serialized_hlo_module_proto()
    return serialised


def describe(tensor: torch.Tensor) -> str:
    """Return all that is known of one tensor: its place, its value's state, and what is recorded to compute it."""
    value = value_of(tensor)
    rows = [
        f"Tensor ID: {address_of(tensor.untyped_storage())}",
        f"Device: {tensor.device}",
        f"Size: {list(tensor.shape)}, stride {list(tensor.stride())}, offset {tensor.storage_offset()}",
        f"Dtype: {tensor.dtype}",
        f"State: {value.state}",
    ]
    text = "XLATensor {\n" + "".join(f"{row}\n" for row in rows)
    if is_pending(tensor):
        pending = graph_of([tensor])
        text += to_text(pending.graph, pending.numbers, pending.lines)
    return text + "}\n"


def element_type(tensor: torch.Tensor) -> str:
    """Return the dtype as XLA names it."""
    return dtypes.SHORT_NAMES[tensor.dtype]
