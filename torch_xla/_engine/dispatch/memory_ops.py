"""Kernels that make, move, share or resize memory: no computation, so no lowering rule."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from .. import metrics
from ..compat.names import torch as private
from ..ir.tape import Value
from ..ir.value_spec import contiguous_stride, refuse_impossible
from ..ir.view.geometry import Geometry
from ..metrics.report import READS
from ..runtime import buffers
from ..step.sync import materialise
from ..tensor.device import LOCK, Device, device_for, uninitialised
from ..tensor.spare_capacity import Grown
from ..tensor.storage import (
    META_KEYS,
    as_strided,
    kept_on_host,
    point_at,
    replaced,
    shows_all,
    snapshot,
    value_of,
    wrap,
)
from ..tensor.views import view_of
from ..transfer import host_copies, storage_bytes
from .checks import cpu_errors
from .checks.cpu_dtypes import refuse_without_kernel
from .op_schema import operator_of
from .recording_kernel import recorder

aten = torch.ops.aten

_comparisons_read = metrics.counter(READS[1])


def empty(
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    """Implement `torch.empty`: described, not allocated. It becomes zeros if it is read before it is written."""
    if layout is not None and layout is not torch.strided:
        raise NotImplementedError(
            f"{layout} tensors do not exist on the xla device. Keep the tensor on the CPU, or use `.to_dense()` first."
        )
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        stride = contiguous_stride(tuple(size))
    else:
        stride = torch.empty(size, device="meta", memory_format=memory_format).stride()
    return _new(tuple(size), tuple(stride), dtype, device)


def empty_strided(
    size: list[int],
    stride: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    """Implement `torch.empty_strided`: a tensor with gaps or overlaps is a view of a flat storage that is just large
    enough.
    """
    if len(size) != len(stride):
        raise RuntimeError(
            f"dimensionality of sizes ({len(size)}) must match dimensionality of strides ({len(stride)})"
        )
    _refuse_negative(size)
    geometry = Geometry(tuple(size), tuple(stride))
    if geometry.is_dense():
        return _new(geometry.size, geometry.stride, dtype, device)
    flat = _new((geometry.extent,), (1,), dtype, device)
    result: Tensor = as_strided(META_KEYS, flat, size, stride, 0)
    return result


def new_empty_strided(self: Tensor, size: list[int], stride: list[int], **options: Any) -> Tensor:
    """Implement `Tensor.new_empty_strided`: dtype and device are those of `self` if none are given."""
    dtype, device = options.get("dtype"), options.get("device")
    return empty_strided(size, stride, dtype=dtype or self.dtype, device=self.device if device is None else device)


def is_set_to(self: Tensor, tensor: Tensor) -> bool:
    """Implement `Tensor.is_set_to`: whether both show the same storage in the same way."""
    return (
        self.untyped_storage() is tensor.untyped_storage()
        and self.storage_offset() == tensor.storage_offset()
        and self.shape == tensor.shape
        and self.stride() == tensor.stride()
    )


def _new(
    size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype | None, device: torch.device | None
) -> Tensor:
    _refuse_negative(size)
    value = uninitialised(size, stride, dtype or torch.get_default_dtype(), device_for(device))
    refuse_impossible(value.spec)
    cpu_errors.warn_of_complex32(value.spec)
    if torch.are_deterministic_algorithms_enabled() and private.fills_uninitialized_memory():
        return _filled(wrap(value))
    return wrap(value)


def _filled(tensor: Tensor) -> Tensor:
    """Fill new memory with NaN or the largest integer, as PyTorch's deterministic algorithms require."""
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor.fill_(math.nan)
    return tensor.fill_(True if tensor.dtype is torch.bool else torch.iinfo(tensor.dtype).max)


def _refuse_negative(size: Sequence[int]) -> None:
    if size and min(size) < 0:
        negative = next(n for n in size if n < 0)
        raise RuntimeError(f"Trying to create tensor with negative dimension {negative}: {list(size)}")


_cast = recorder("aten::_to_copy")


def to_copy(
    self: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Any = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    """Implement `.to(...)`: to another dtype on the device, to the host, or to another ordinal."""
    if is_lazy(self):
        # The parameter of a lazy module: empty memory that keeps its shape to itself.
        with private.without_torch_function():
            self = self.data
    if self.device.type != "xla":
        return _upload(self if dtype is None else self.to(dtype), device_for(device), memory_format)
    if device is not None:
        device = torch.device(device)
        if device.type != "xla":
            host = host_copies.to_cpu(self)
            if memory_format is None:
                memory_format = torch.preserve_format
            return host.to(device, dtype or host.dtype, memory_format=memory_format)
        target = device_for(device)
        source: Device = value_of(self).device
        if target is not source:
            moved = _move(self, target)
            return moved if dtype is None or dtype is moved.dtype else to_copy(moved, dtype=dtype)
    _warn_of_lost_imaginary_part(self, dtype or self.dtype)
    if dtype is None or dtype is self.dtype:
        return clone(self, memory_format=memory_format)
    grown = value_of(self)
    if isinstance(grown, Grown) and shows_all(self, grown.spec):
        return wrap(Grown(value_of(_cast(wrap(grown.room), dtype=dtype)), grown.length, grown.dim))
    return _cast(self, dtype=dtype, memory_format=memory_format)  # type: ignore[no-any-return]


def _upload(tensor: Tensor, device: Device, memory_format: torch.memory_format | None) -> Tensor:
    if memory_format not in (None, torch.preserve_format):
        tensor = tensor.contiguous(memory_format=memory_format)
    if device.spread is not None and tensor.nbytes >= _WORTH_WAITING and _is_plain(tensor):
        return kept_on_host(tensor, device)
    return wrap(host_copies.upload(tensor, device))


# With several devices, constants from this size in bytes stay on the host until they are used, because each device
# would receive a whole copy.
_WORTH_WAITING = 1 << 14


def _is_plain(tensor: Tensor) -> bool:
    return not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized) and tensor.layout is torch.strided


def _move(tensor: Tensor, target: Device) -> Tensor:
    value = snapshot(tensor)
    moved = Value(value.spec, target, None, -1)
    moved.buffer = buffers.move(materialise(value), target.target)
    return wrap(moved)


_record_clone = recorder("aten::clone")


def clone(self: Tensor, *, memory_format: torch.memory_format | None = None) -> Tensor:
    """Implement `torch.clone`: values never change, so a copy in the same order of memory is the same value on a new
    storage.
    """
    value = value_of(self)
    # A buffer that code outside of the engine may write to cannot be a value, which never changes.
    if (
        not value.shared
        and shows_all(self, value.spec)
        and (memory_format in (None, torch.preserve_format) or self.is_contiguous(memory_format=memory_format))
    ):
        return wrap(value)
    return _record_clone(self, memory_format=memory_format)  # type: ignore[no-any-return]


_record_copy = recorder("aten::copy_")
_WIDEST = {float: torch.float64, complex: torch.complex128}


def copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """Implement `Tensor.copy_` between any two of host, this device and other ordinals."""
    if not isinstance(src, Tensor):  # a number, which PyTorch takes for a tensor of its widest kind
        src = torch.tensor(src, dtype=_WIDEST.get(type(src)))
    if self is src or _shows_the_same(self, src):
        return self
    if self.device.type != "xla":
        return self.copy_(host_copies.to_cpu(src))
    if src.device.type != "xla":
        cpu_errors.refuse_overlapping_target(operator_of("aten::copy_"), (self, src), {})
        _check_broadcast(self, src)
        host_copies.upload_into(self, src)
        return self
    ours, theirs = value_of(self), value_of(src)
    if ours.device is not theirs.device:
        src = _move(src, ours.device)
        theirs = value_of(src)
    if theirs.spec is ours.spec and not theirs.shared and shows_all(self, ours.spec) and shows_all(src, theirs.spec):
        with LOCK:
            self.untyped_storage().value = theirs  # type: ignore[attr-defined]
        return self
    _warn_of_lost_imaginary_part(src, self.dtype)
    _record_copy(self, src)
    return self


def _shows_the_same(self: Tensor, src: Tensor) -> bool:
    return self.untyped_storage() is src.untyped_storage() and view_of(self) is view_of(src)


_fill = recorder("aten::fill_.Tensor")


def fill_(self: Tensor, value: Tensor) -> object:
    """Implement `Tensor.fill_` with a tensor."""
    _warn_of_lost_imaginary_part(value, self.dtype)
    return _fill(self, value)


_has_warned = False


def _warn_of_lost_imaginary_part(source: Tensor, dtype: torch.dtype) -> None:
    global _has_warned
    if source.dtype.is_complex and not dtype.is_complex and dtype is not torch.bool and not _has_warned:
        _has_warned = True  # PyTorch warns once too
        warnings.warn("Casting complex values to real discards the imaginary part", stacklevel=3)


def _check_broadcast(self: Tensor, src: Tensor) -> None:
    try:
        broadcast = torch.broadcast_shapes(self.shape, src.shape)
    except RuntimeError:
        broadcast = None  # type: ignore[assignment]
    if broadcast is None:
        pairs = zip(reversed(self.shape), reversed(src.shape), strict=False)
        place, ours, theirs = next((nth, a, b) for nth, (a, b) in enumerate(pairs, 1) if a != b and 1 not in (a, b))
        raise RuntimeError(
            f"The size of tensor a ({ours}) must match the size of tensor b ({theirs}) at non-singleton dimension "
            f"{max(self.dim(), src.dim()) - place}"
        )
    if broadcast != self.shape:
        raise RuntimeError(f"output with shape {list(self.shape)} doesn't match the broadcast shape {list(broadcast)}")


def copy_from(self: Tensor, dst: Tensor, non_blocking: bool = False) -> Tensor:
    """Implement `_copy_from`: `dst.copy_(self)`, as PyTorch asks it of a backend."""
    return copy_(dst, self, non_blocking)


def copy_from_and_resize(self: Tensor, dst: Tensor) -> Tensor:
    """Implement `_copy_from_and_resize`: `dst` takes the size and the contents of `self`."""
    if dst.shape != self.shape:
        dst.resize_(self.shape)
    return copy_(dst, self)


def equal(self: Tensor, other: Tensor) -> bool:
    """Implement `torch.equal`: one comparison on the device, one number back."""
    if self.shape != other.shape:
        return False
    refuse_without_kernel("aten::equal", self, other)
    return bool(host_copies.item(torch.eq(self, other).all(), _comparisons_read, callers=1))


def resize_(self: Tensor, size: list[int], *, memory_format: torch.memory_format | None = None) -> Tensor:
    """Implement `Tensor.resize_`: keeps the storage's elements, and grows the storage if it is too small."""
    if memory_format is None and list(self.shape) == list(size):
        return self
    target = Geometry.contiguous(tuple(size))
    if memory_format is torch.preserve_format:
        raise RuntimeError("Unsupported memory formatPreserve")
    if memory_format not in (None, torch.contiguous_format):
        stride = torch.empty(size, device="meta", memory_format=memory_format).stride()
        target = Geometry(tuple(size), tuple(stride))
    value = value_of(self)
    needed = int(self.storage_offset()) + target.extent
    has = value.spec.numel * value.spec.dtype.itemsize // self.element_size()
    if needed > has:
        _grow(self, value, needed)
    self.set_(self.untyped_storage(), self.storage_offset(), target.size, target.stride)
    return self


def _grow(tensor: Tensor, value: Value, elements: int) -> None:
    storage = tensor.untyped_storage()
    dtype = value.spec.dtype
    count = -(-elements * tensor.element_size() // dtype.itemsize)
    flat = torch.empty((count,), dtype=dtype, device=tensor.device)
    if value.spec.numel and value.state != "empty":
        flat[: value.spec.numel].copy_(wrap(value).as_strided((value.spec.numel,), (1,), 0))
    with LOCK:
        is_done = replaced((storage,), (value,), (value_of(flat),))
    if not is_done:  # another thread has written to it meanwhile
        _grow(tensor, value_of(tensor), elements)


def set_storage_offset(
    self: Tensor, source: torch.UntypedStorage, storage_offset: int, size: list[int], stride: list[int] | None = None
) -> Tensor:
    """Implement `Tensor.set_(storage, offset, size, stride)`: `self` becomes a view of `source`, which grows if it is
    small.
    """
    stride = stride or list(contiguous_stride(tuple(size)))
    if len(stride) == len(size) and getattr(source, "value", None) is not None:
        needed = Geometry(tuple(size), tuple(stride), storage_offset).extent * self.element_size()
        if needed > source.nbytes():
            storage_bytes.resize(source, needed)
    return point_at(self, source, storage_offset, size, stride)


def set_storage(self: Tensor, source: torch.UntypedStorage) -> Tensor:
    """Implement `Tensor.set_(storage)`: `self` shows the whole of `source`."""
    return set_storage_offset(self, source, 0, [source.nbytes() // self.element_size()], [1])


def set_tensor(self: Tensor, source: Tensor) -> Tensor:
    """Implement `Tensor.set_(tensor)`: `self` shares the storage and geometry of `source`."""
    if source.device != self.device:
        raise RuntimeError(
            f'Attempted to set the storage of a tensor on device "{self.device}" to a storage on different device '
            f'"{source.device}". This is no longer allowed; the devices must match. Move the source with '
            f"`.to({str(self.device)!r})`"
        )
    value_of(source)
    return set_storage_offset(
        self, source.untyped_storage(), int(source.storage_offset()), list(source.shape), list(source.stride())
    )


def set_nothing(self: Tensor) -> Tensor:
    """Implement `Tensor.set_()`: `self` becomes empty."""
    return set_tensor(self, torch.empty(0, dtype=self.dtype, device=self.device))


KERNELS: dict[str, Callable[..., object]] = {
    "empty.memory_format": empty,
    "empty_strided": empty_strided,
    "new_empty_strided": new_empty_strided,
    "is_set_to": is_set_to,
    "_to_copy": to_copy,
    "clone": clone,
    "_lazy_clone": clone,
    "copy_": copy_,
    "_copy_from": copy_from,
    "_copy_from_and_resize": copy_from_and_resize,
    "_local_scalar_dense": host_copies.item,
    "equal": equal,
    "fill_.Tensor": fill_,
    "resize_": resize_,
    "set_": set_nothing,
    "set_.source_Storage": set_storage,
    "set_.source_Storage_storage_offset": set_storage_offset,
    "set_.source_Tensor": set_tensor,
}
