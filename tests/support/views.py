"""Random views of random storages, made by PyTorch's own view operations: cases for the tests of views."""

from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
import torch
from hypothesis import strategies as st

from torch_xla._engine.ir.view import Broadcast, Gather, Geometry, Pad, Reshape, Slice, Transpose, ViewOp


@dataclass(frozen=True)
class ViewCase:
    """A flat storage that holds 0, 1, 2, …, and a tensor on it made by a chain of view operations."""

    base: Geometry
    storage: torch.Tensor
    tensor: torch.Tensor
    chain: tuple[str, ...]

    @property
    def view(self) -> Geometry:
        return geometry_of(self.tensor)

    def whole(self) -> torch.Tensor:
        """The whole storage, in the size of the base."""
        return self.storage.as_strided(self.base.size, self.base.stride)


def geometry_of(tensor: torch.Tensor) -> Geometry:
    return Geometry(tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def permuted_geometry(size: tuple[int, ...], order: tuple[int, ...]) -> Geometry:
    """Return the dense geometry of `size` with its dimensions in this memory order, outermost first."""
    stride = [0] * len(size)
    below = 1
    for dim in reversed(order):
        stride[dim] = below
        below *= size[dim] or 1
    return Geometry(size, tuple(stride))


@st.composite
def dense_geometries(draw: st.DrawFn, smallest: int = 1) -> Geometry:
    size = tuple(draw(st.lists(st.integers(smallest, 6), max_size=4)))
    dims = range(len(size))
    order = draw(st.one_of(st.just(tuple(dims)), st.permutations(dims).map(tuple)))
    return permuted_geometry(size, order)


SLICING = ("permute", "slice", "select", "expand", "unsqueeze", "squeeze", "view", "flatten", "split")
NESTED = (*SLICING, "movedim", "diagonal", "apart")
ANY = (*NESTED, "unfold", "as_strided")


@st.composite
def view_cases(draw: st.DrawFn, operations: tuple[str, ...] = ANY, smallest: int = 1) -> ViewCase:
    base = draw(dense_geometries(smallest))
    storage = torch.arange(base.numel, dtype=torch.int64)
    tensor = storage.as_strided(base.size, base.stride)
    done = []
    for name in draw(st.lists(st.sampled_from(operations), max_size=6)):
        viewed = _apply(draw, name, tensor)
        if viewed is not None and viewed.numel() <= 5000:
            tensor = viewed
            done.append(f"{name} -> {geometry_of(tensor)}")
    return ViewCase(base, storage, tensor, tuple(done))


def _apply(draw: st.DrawFn, name: str, x: torch.Tensor) -> torch.Tensor | None:
    """One operation with random arguments; None where it does not apply."""
    if name == "permute":
        return x.permute(draw(st.permutations(range(x.dim()))))
    if name == "unsqueeze":
        return x.unsqueeze(draw(st.integers(-x.dim() - 1, x.dim()))) if x.dim() < 6 else None
    if name == "squeeze":
        return x.squeeze()
    if name == "expand":
        return x.expand([draw(st.integers(2, 3)) if draw(st.booleans()) and n == 1 else n for n in x.shape])
    if name == "as_strided":
        return _as_strided(draw, x)
    if x.dim() == 0:
        return None
    dim = draw(st.integers(-x.dim(), x.dim() - 1))
    n = x.shape[dim]
    if name == "slice":
        start, step = draw(st.integers(0, max(n - 1, 0))), draw(st.integers(1, 3))
        return x.movedim(dim, 0)[start : draw(st.integers(start + 1, n + 1)) : step].movedim(0, dim)
    if name == "select":
        return x.select(dim, draw(st.integers(-n, n - 1))) if n else None
    if name == "movedim":
        return x.movedim(dim, draw(st.integers(-x.dim(), x.dim() - 1)))
    if name == "split":
        divisors = [k for k in range(1, n + 1) if n % k == 0]
        return x.unflatten(dim, (draw(st.sampled_from(divisors)), -1)) if divisors and x.dim() < 6 else None
    if name == "unfold":
        size = draw(st.integers(1, max(n, 1)))
        return x.unfold(dim, size, draw(st.integers(1, 3))) if n else None
    if name == "apart":
        size = draw(st.integers(1, max(n, 1)))
        return x.unfold(dim, size, size + draw(st.integers(0, 2))) if n else None
    if x.dim() < 2:
        return None
    if name == "diagonal":
        other = draw(st.sampled_from([d for d in range(x.dim()) if d != dim % x.dim()]))
        return x.diagonal(draw(st.integers(-2, 2)), dim, other)
    first, last = sorted(draw(st.tuples(*[st.integers(0, x.dim() - 1)] * 2))) if name == "view" else (0, x.dim() - 1)
    merged = [*x.shape[:first], prod(x.shape[first : last + 1]), *x.shape[last + 1 :]]
    try:
        return x.view(merged)
    except RuntimeError:  # PyTorch cannot merge these without a copy
        return None


def _as_strided(draw: st.DrawFn, x: torch.Tensor) -> torch.Tensor | None:
    """Any size and stride that stay in the storage: overlapping, with gaps, or repeated."""
    room = x.untyped_storage().size() // x.element_size()
    if not room:
        return None
    offset = draw(st.integers(0, room - 1))
    size, stride, left = [], [], room - 1 - offset
    for _ in range(draw(st.integers(0, 3))):
        stride.append(draw(st.integers(0, 12)))
        fit = 4 if stride[-1] == 0 else min(left // stride[-1] + 1, 6)
        size.append(draw(st.integers(1, fit)))
        left -= (size[-1] - 1) * stride[-1]
    order = draw(st.permutations(range(len(size))))
    return x.as_strided([size[d] for d in order], [stride[d] for d in order], offset)


def shows_each_once(geometry: Geometry) -> bool:
    """Whether no element of the storage is shown twice, found by looking at all of them."""
    if 0 in geometry.size:
        return True
    extent = geometry.extent
    shown = torch.arange(extent).as_strided(geometry.size, geometry.stride, geometry.offset).flatten().sort().values
    return all(a < b for a, b in pairwise(shown.tolist()))


def apply_steps(steps: tuple[ViewOp, ...], array: np.ndarray) -> np.ndarray:
    """The steps in NumPy; padding is -1, to be seen should it ever be shown."""
    for step in steps:
        match step:
            case Reshape(size):
                assert array.size == prod(size)
                array = array.reshape(size)
            case Transpose(permutation):
                array = array.transpose(permutation)
            case Slice(start, limit, stride):
                assert all(0 <= a <= b <= n for a, b, n in zip(start, limit, array.shape, strict=True))
                array = array[region(start, limit, stride)]
            case Pad(size):
                width = [(0, to - n) for n, to in zip(array.shape, size, strict=True)]
                array = np.pad(array, width, constant_values=-1)
            case Broadcast(size, dims):
                assert list(dims) == sorted(set(dims))
                new = tuple(dim for dim in range(len(size)) if dim not in dims)
                array = np.broadcast_to(np.expand_dims(array, new), size)
            case Gather(view):
                assert array.ndim == 1
                array = array[flat_index(view)]
    return array


def region(start: tuple[int, ...], limit: tuple[int, ...], step: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(map(slice, start, limit, step))


def flat_index(view: Geometry) -> np.ndarray:
    index = np.full(view.size, view.offset)
    for dim, stride in enumerate(view.stride):
        index += np.arange(view.size[dim]).reshape([-1 if d == dim else 1 for d in range(len(view.size))]) * stride
    return index
