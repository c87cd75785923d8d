"""Operators that take indices: check them at the call where the host knows them, with the CPU's error."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...metrics.user_lines import user_frame
from ...tensor.device import device_for
from ...tensor.host_known_values import Asked, known_numbers
from ..append_calls import keeping_room
from ..call_planning import type_name
from ..op_schema import operator_of
from ..recording_kernel import recorder
from . import cpu_errors
from .scalar_ranges import holds_number

# Position of the index and of the dimension it counts in.
_BY_DIMENSION = (
    "gather", "index_select", "scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce", "scatter_add",
    "scatter_reduce.two", "scatter_.src", "scatter_.value", "scatter_.reduce", "scatter_.value_reduce", "scatter_add_",
    "scatter_reduce_.two", "index_add", "index_add_", "index_copy", "index_copy_", "index_fill.int_Scalar",
    "index_fill.int_Tensor", "index_fill_.int_Scalar", "index_fill_.int_Tensor", "index_reduce", "index_reduce_",
)  # fmt: skip
_FLAT = ("take", "put", "put_")
_BY_TENSORS = (
    "index.Tensor", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index.Tensor", "_unsafe_index_put",
)  # fmt: skip

# The CPU's errors for an index into a tensor without dimensions, which has one place. Asked, some kernels read it.
_OF_ONE_PLACE = {
    **dict.fromkeys(
        ("gather", "scatter", "scatter_add", "scatter_reduce"),
        (RuntimeError, "index {} is out of bounds for dimension 0 with size 1"),
    ),
    **dict.fromkeys(("index_select", "index_add", "index_reduce"), (IndexError, "index out of range in self")),
    "index_copy": (IndexError, "index_copy_(): index {} is out of bounds for dimension 0 with size 1"),
    "index_fill": (IndexError, "index {} is out of bounds for dimension 0 with size 1"),
}
# These take one element for each index, so a source of another size is wrong before the index is.
_OF_ONE_SOURCE = ("index_add", "index_reduce", "index_select", "index_copy")

# The CPU's words for values. For indices, if none is a tensor, it names an assertion inside PyTorch.
_OF_VALUES = ("shape mismatch", "Index put requires")

_INDICES = (torch.int64, torch.bool, torch.int32, torch.uint8)
_BYTES = "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead."


def _is_outside(index: object, size: int, from_end: bool = True) -> bool:
    known = known_numbers(index, Asked.EACH)
    least = -size if from_end else 0
    return known is not None and bool(known.size) and (int(known.min()) < least or int(known.max()) >= size)


def by_dimension(name: str) -> Callable[..., object]:
    """Return the kernel of an operator with (self, dim, index, …). The index of `index_fill` may be on the CPU."""
    record = recorder(f"aten::{name}")
    if name == "index_select":  # so beam search chooses among texts
        record = keeping_room(record)
    fills = from_end = name.startswith("index_fill")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if len(args) > 2 and isinstance(args[2], Tensor):
            tensor, dim, index = args[:3]
            if fills and index.device.type == "cpu" and tensor.device.type == "xla":  # it is `tensor[index] = value`
                index = index.to(device_for(tensor.device).torch_device)
                args = (tensor, dim, index, *args[3:])
            if -tensor.dim() <= dim < tensor.dim() and _is_outside(index, tensor.shape[dim], from_end):
                cpu_errors.refuse_if_the_cpu_does(operator_of(f"aten::{name}"), args, kwargs)
            if fills and len(args) > 3 and not holds_number(tensor.dtype, args[3]):
                cpu_errors.refuse_if_the_cpu_does(operator_of(f"aten::{name}"), args, kwargs)
            if not tensor.dim() and dim in (-1, 0):
                _refuse_another_place(name.partition(".")[0].rstrip("_"), index, args[3:])
        return record(*args, **kwargs)

    return kernel


def _refuse_another_place(name: str, index: Tensor, rest: Sequence[object]) -> None:
    """Refuse an index into a tensor without dimensions that the host knows to be none of its one place."""
    known = known_numbers(index, Asked.EACH)
    if known is None or index.dtype not in (torch.int64, torch.int32):
        return
    is_source_wrong = name in ("index_add", "index_reduce") and any(isinstance(x, Tensor) and x.dim() for x in rest)
    if is_source_wrong or (name in _OF_ONE_SOURCE and index.numel() != 1):
        return
    least = -1 if name == "index_fill" else 0
    outside = [number for number in known.ravel().tolist() if not least <= number < 1]
    if outside:
        kind, words = _OF_ONE_PLACE[name]
        raise kind(words.format(outside[0]))


def flat(name: str) -> Callable[..., Any]:
    """Return the kernel of an operator with (self, index, …), where the index counts all elements."""
    record = recorder(f"aten::{name}")

    def kernel(self: Tensor, index: Tensor, *args: object, **kwargs: object) -> Any:
        source = args[0] if args else self
        if isinstance(source, Tensor) and source.dtype is not self.dtype and index.dtype is torch.int64:
            raise RuntimeError(
                "put_(): self and source expected to have the same dtype, but got "
                f"self.dtype = {type_name(self.dtype)} and source.dtype = {type_name(source.dtype)}"
            )
        if _is_outside(index, self.numel()):
            cpu_errors.refuse_if_the_cpu_does(operator_of(f"aten::{name}"), (self, index, *args), kwargs)
        return record(self, index, *args, **kwargs)

    return kernel


def by_tensors(name: str) -> Callable[..., Any]:
    """Return the kernel of an operator with (self, indices, …), such as `x[i, :, mask]`. Indices may be on the CPU."""
    record = recorder(f"aten::{name}")

    def kernel(self: Tensor, indices: Sequence[Tensor | None], *args: Any, **kwargs: object) -> Any:
        for index in indices:
            if index is not None and index.dtype not in _INDICES:
                raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
            _warn_of_bytes(index)
        if self.device.type == "xla":
            indices = _resolved(self, indices)
        adds = bool(args[1] if len(args) > 1 else kwargs.get("accumulate"))
        if _may_be_refused(self, indices, args[0] if args else None, adds):
            _refuse_if_the_cpu_does(name, (self, indices, *args), kwargs)
        return record(self, indices, *args, **kwargs)

    return kernel


def _refuse_if_the_cpu_does(name: str, args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
    refusal = cpu_errors.refusal_of_the_cpu(operator_of(f"aten::{name}"), args, kwargs)
    if refusal is None:
        return
    is_clear = isinstance(refusal, IndexError) or str(refusal).startswith(_OF_VALUES)
    if not is_clear and all(index is None for index in args[1]):
        raise RuntimeError(f"{name} expects a tensor among its indices. To write to all elements, use copy_.")
    raise refusal


def _may_be_refused(tensor: Tensor, indices: Sequence[Tensor | None], values: Tensor | None, adds: bool) -> bool:
    """Return whether the CPU may refuse to read at the indices, or to put the values in."""
    dim = 0
    for index in indices:
        if (
            index is not None
            and dim < tensor.dim()
            and (not tensor.shape[dim] or _is_outside(index, tensor.shape[dim]))
        ):
            return True
        if index is None or not _is_mask(index):
            dim += 1
            continue
        if tensor.shape[dim : dim + index.dim()] != index.shape:
            return True
        if index.dtype is torch.uint8 and values is not None and values.numel() == 1:
            return True  # one number is a masked fill, for which bytes are no mask
        dim += index.dim()
    if values is None:
        return False
    if values.dtype is not tensor.dtype or all(index is None for index in indices):
        return True
    return _miss(tensor, indices, values, adds)


def _miss(tensor: Tensor, indices: Sequence[Tensor | None], values: Tensor, adds: bool) -> bool:
    """Return whether values may have other sizes than what known masks choose, or indices without elements.

    Of other indices the rules look at the sizes.
    """
    masks = [index for index in indices if index is not None and _is_mask(index)]
    if masks and values.numel() == 1 and not adds:
        return False  # it is filled in, however many places they choose
    if tensor.numel() and not masks and all(index is None or index.numel() for index in indices):
        return False
    counts = []
    for mask in masks:
        known = known_numbers(mask) if mask.numel() else np.empty(0)
        if known is None:
            return False
        if known.size != mask.numel():
            return True  # it shows some of the numbers in its memory
        counts.append(int(np.count_nonzero(known)))
    chosen = _chosen_size(tensor, indices, counts)
    if chosen is None or values.dim() > len(chosen):
        return True
    return any(size not in (1, of) for size, of in zip(values.shape[::-1], chosen[::-1], strict=False))


def _chosen_size(tensor: Tensor, indices: Sequence[Tensor | None], counts: Sequence[int]) -> tuple[int, ...] | None:
    """Return the size of the chosen elements, where masks choose `counts` places; `None` if indices do not fit."""
    sizes: list[tuple[int, ...]] = []
    places: list[int] = []  # of indices, among the dimensions that a mask makes one of
    kept, dim, left = [], 0, iter(counts)
    for place, index in enumerate(indices):
        if index is None:
            kept.append((place, tensor.shape[dim : dim + 1]))
            dim += 1
            continue
        sizes.append((next(left),) if _is_mask(index) else tuple(index.shape))
        places.append(place)
        dim += index.dim() if _is_mask(index) else 1
    try:
        size = tuple(torch.broadcast_shapes(*sizes))
    except RuntimeError:
        return None
    is_apart = bool(places) and places[-1] - places[0] >= len(places)
    first = places[0] if places and not is_apart else 0
    before = [n for place, found in kept for n in found if place < first]
    after = [n for place, found in kept for n in found if place >= first]
    return (*before, *size, *after, *tensor.shape[dim:])


def masked(name: str) -> Callable[..., object]:
    """Return the kernel of an operator with (self, mask, source): each place takes an element, and all are to have
    one.
    """
    record = recorder(f"aten::{name}")

    def kernel(self: Tensor, mask: Tensor, source: Tensor) -> Any:
        if known_numbers(mask) is not None and source.numel() < self.numel():
            cpu_errors.refuse_if_the_cpu_does(operator_of(f"aten::{name}"), (self, mask, source), {})
        return record(self, mask, source)

    return kernel


def _warn_of_bytes(index: Tensor | None) -> None:
    if index is None or index.dtype is not torch.uint8:
        return
    frame = user_frame()
    if frame is None:
        warnings.warn(_BYTES, stacklevel=2)
    else:
        seen = frame.f_globals.setdefault("__warningregistry__", {})
        warnings.warn_explicit(_BYTES, UserWarning, frame.f_code.co_filename, frame.f_lineno, registry=seen)


def _is_mask(index: Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def without_masks(
    tensor: Tensor, indices: Sequence[Tensor | None], places_of: Callable[[Tensor], Sequence[Tensor]]
) -> Sequence[Tensor | None]:
    """Return the indices of `tensor`, with each mask on the device that fits replaced by `places_of` it."""
    if not any(index is not None and _is_mask(index) for index in indices):
        return indices
    result: list[Tensor | None] = []
    for index in indices:
        fits = index is not None and tensor.shape[len(result) : len(result) + index.dim()] == index.shape
        if index is not None and index.device.type == "xla" and _is_mask(index) and fits:
            _warn_of_bytes(index)
            result += places_of(index)
        else:
            result.append(index)
    return result


def _resolved(tensor: Tensor, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the indices on the device of `tensor`; a mask on the CPU becomes the places where it is true."""
    if all(index is None or index.device.type == "xla" for index in indices):
        return list(indices)
    result: list[Tensor | None] = []
    device = device_for(tensor.device).torch_device
    for index in indices:
        if index is None or index.device.type != "cpu":
            result.append(index)
        elif _is_mask(index) and tensor.shape[len(result) : len(result) + index.dim()] == index.shape:
            result += [places.to(device) for places in index.nonzero().unbind(1)]
        else:
            result.append(index.to(device))
    return result


def embedding(weight: Tensor, indices: Tensor, *args: object, **kwargs: object) -> object:
    """Implement `aten::embedding`: indices count the rows of `weight`, and none from the end."""
    known = known_numbers(indices, Asked.EACH)
    rows = weight.shape[0] if weight.dim() else 0
    if known is not None and known.size and (int(known.min()) < 0 or int(known.max()) >= rows):
        cpu_errors.refuse_if_the_cpu_does(operator_of("aten::embedding"), (weight, indices, *args), kwargs)
    return _embedding(weight, indices, *args, **kwargs)


_embedding = recorder("aten::embedding")

KERNELS: dict[str, Callable[..., Any]] = {
    **{name: by_dimension(name) for name in _BY_DIMENSION},
    **{name: flat(name) for name in _FLAT},
    **{name: by_tensors(name) for name in _BY_TENSORS},
    **{name: masked(name) for name in ("masked_scatter", "masked_scatter_")},
    "embedding": embedding,
}
