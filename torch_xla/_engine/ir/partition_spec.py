"""Partition specs: which axes of a mesh divide each dimension of a value, by name or number."""

import ast
from collections.abc import Sequence
from typing import Any

from ..errors import MeshError

Dims = tuple[tuple[int, ...], ...]


def dims_of(who: str, shape: Sequence[int], names: Sequence[str] | None, partition_spec: Sequence[object]) -> Dims:
    """Return for each entry of a partition spec the indices of its axes in a mesh with this shape and these axis names.

    Raises `ValueError` if an entry is no axis, or occurs twice; `who` names the called function in the message.
    """
    entries = [each if isinstance(each, tuple | list) else () if each is None else (each,) for each in partition_spec]
    found = tuple(tuple(_index_of(who, shape, names, axis) for axis in entry) for entry in entries)
    indices = [axis for axes in found for axis in axes]
    if len(set(indices)) != len(indices):
        raise MeshError(f"{who}(): an axis of the mesh occurs twice in the partition spec {tuple(partition_spec)}")
    return found


def _index_of(who: str, shape: Sequence[int], names: Sequence[str] | None, axis: object) -> int:
    if isinstance(axis, str):
        if names and axis in names:
            return list(names).index(axis)
    elif type(axis) is not bool and isinstance(axis, int) and 0 <= axis < len(shape):
        return axis
    raise MeshError(f"{who}(): the mesh has no axis {axis!r}; it has {list(names or range(len(shape)))}")


def literal(who: str, text: str) -> Any:
    """Return the mesh or partition spec whose `str` is `text`; raises `ValueError` for any other text."""
    try:
        return ast.literal_eval(text) if text else None
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"{who}(): {text!r} is not what str() gives for a mesh or a partition spec") from error
