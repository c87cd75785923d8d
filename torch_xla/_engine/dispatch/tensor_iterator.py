"""Memory order of element-wise results, as PyTorch's TensorIterator chooses it from the operands."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..ir.value_spec import contiguous_stride


def stride_of_result(size: tuple[int, ...], operands: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the strides of a result of `size` for operands with as many dimensions, some of them broadcast.

    Strides of dimensions of size 1, and of tensors without elements, are PyTorch's too, unlike those derived from a
    dense order.
    """
    strides = [
        tuple(0 if n == 1 and of != 1 else s for n, of, s in zip(o.shape, size, o.stride(), strict=True))
        for o in operands
    ]
    inner_first = _order(size, strides)
    if inner_first == list(reversed(range(len(size)))):
        return contiguous_stride(size)
    result, step = [0] * len(size), 1
    for dim in inner_first:
        result[dim] = step
        step *= size[dim]
    return tuple(result)


def _order(size: tuple[int, ...], strides: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the dimensions, innermost in memory first: sorted by insertion, since not every two of them can be
    compared.
    """
    order = list(reversed(range(len(size))))
    for start in range(1, len(order)):
        place = start
        for other in reversed(range(start)):
            if (comparison := _compare(order[other], order[place], size, strides)) < 0:
                break
            if comparison > 0:
                order[other], order[place] = order[place], order[other]
                place = other
    return order


def _compare(a: int, b: int, size: tuple[int, ...], strides: Sequence[tuple[int, ...]]) -> int:
    """Return -1 if dimension `a` belongs inside `b`, 1 if `b` belongs inside `a`, 0 if no operand decides."""
    for stride in strides:
        if stride[a] == 0 or stride[b] == 0:
            continue
        if stride[a] != stride[b]:
            return -1 if stride[a] < stride[b] else 1
        if size[a] > size[b]:
            return 1
    return 0


def stride_of_indexed(source: Tensor, indices: Sequence[Tensor | None], size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of `source[indices]`, which has the size `size`; no index is a mask."""
    given = iter(torch.broadcast_tensors(*(index for index in indices if index is not None)))
    rest = [None] * (source.dim() - len(indices))
    spread = [None if index is None else next(given) for index in (*indices, *rest)]
    places = [dim for dim, index in enumerate(spread) if index is not None]
    if places != list(range(places[0], places[-1] + 1)):
        # Indices that are apart put their dimensions in front.
        source = source.permute(places + [dim for dim in range(source.dim()) if dim not in places])
        places = list(range(len(places)))
    found = [index for index in spread if index is not None]
    before, after = places[0], source.dim() - places[-1] - 1
    stride = source.stride()
    rows = source.as_strided(size, (*stride[:before], *[0] * found[0].dim(), *stride[source.dim() - after :]))
    operands = [rows, *(index.reshape((1,) * before + tuple(index.shape) + (1,) * after) for index in found)]
    if all(o.shape == size and o.is_contiguous() for o in operands):
        return contiguous_stride(size)
    return stride_of_result(size, operands)
