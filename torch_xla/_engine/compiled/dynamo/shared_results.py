"""Results of a graph that show the same memory: one is a result of the operation, the others are views of it.

AOTAutograd leaves it to the backend that such results share memory where they need no gradient. The results of an
operation are arrays, each with memory of its own: a write to one would not be seen in the others. A result that shows
an element of its own memory twice, as an expanded one does, is a view as well.
"""

import itertools
import operator
from collections.abc import Iterable

import numpy as np
import torch
from torch.fx import Node

from ...compat.names.torch import OpOverload
from ...dispatch.op_schema import Form, form_of
from .overlapping_writes import repeats

# Memory of more bytes than these counts as shared without a look at which bytes are shown.
_MOST = 1 << 24


def shared_views(results: Iterable[Node], on_device: set[Node]) -> list[Node]:
    """Return the calls on the device that the host makes after it, as some of the `results` show the same memory, or
    an element of it twice.
    """
    chains = {node: _views_down_to(node, on_device) for node in dict.fromkeys(results) if node in on_device}
    by_base: dict[Node, list[Node]] = {}
    for node, views in chains.items():
        by_base.setdefault(_shown(views[0], on_device) or node if views else node, []).append(node)
    found = {node for last, views in chains.items() if views and repeats(last.meta["val"]) for node in views}
    for nodes in by_base.values():
        for pair in itertools.combinations(nodes, 2):
            if _overlap(*pair):
                found.update(*map(chains.__getitem__, pair))
    operands = {operand for node in found for operand in node.all_input_nodes} - found
    # The host has no sizes that the device's part works out.
    if any(operand in on_device and not _is_tensor(operand) for operand in operands):
        return []
    return sorted(found)


def _views_down_to(node: Node, on_device: set[Node]) -> list[Node]:
    """Return the chain of views that ends in `node`, the first one first; none if it has memory of its own."""
    views: list[Node] = []
    base = _shown(node, on_device)
    while base is not None:
        views.append(node)
        node, base = base, _shown(base, on_device)
    return views[::-1]


def _shown(node: Node, on_device: set[Node]) -> Node | None:
    """Return the result of a call on the device whose memory `node` shows."""
    is_view = isinstance(node.target, OpOverload) and form_of(node.target) is Form.VIEW
    is_part = node.target is operator.getitem and not _is_tensor(node.all_input_nodes[0])
    operands = node.all_input_nodes
    if not operands or operands[0] not in on_device or not (is_view or is_part):
        return None
    if is_part and _shown(operands[0], on_device) is None:
        return None  # one of several results of an operator
    return operands[0]


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _overlap(one: Node, other: Node) -> bool:
    """Return whether two views of one memory have a byte in common; true where that is not known yet."""
    shown = [_bytes_of(node.meta["val"]) for node in (one, other)]
    ends = [_end(*each) for each in shown]
    if any(end is None for end in ends):
        return True
    most = max(end for end in ends if end is not None)
    if most > _MOST:
        return True
    seen = np.zeros(most + 1, dtype=bool)
    parts = [np.lib.stride_tricks.as_strided(seen[offset:], size, stride) for size, stride, offset in shown]
    parts[0][...] = True
    return bool(parts[1].any())


def _bytes_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return size, stride and offset in bytes. Numbers that are not known stay symbols: to read one would guard it."""
    width = tensor.element_size()
    stride = (*(step * width for step in tensor.stride()), 1)
    return (*tensor.shape, width), stride, tensor.storage_offset() * width  # type: ignore[return-value]


def _end(size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> int | None:
    """Return the byte behind the last one that is shown; `None` for sizes that are not known."""
    if not all(isinstance(number, int) for number in (*size, *stride, offset)):
        return None
    if 0 in size:
        return offset
    return offset + 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
