"""View operators: PyTorch's kernels for tensors without memory make the view; nothing is recorded."""

import torch

from ..compat.names.torch import redispatch_of
from ..ir.value_spec import Spec
from ..ir.view.geometry import Geometry
from ..tensor.device import LOCK
from ..tensor.storage import META_KEYS, point_at, replaced, shows_all, value_of, wrap
from .op_schema import resolve

# The views without a composite kernel. All others (`transpose`, `select`, `slice`, …) end in one of these.
NAMES = (
    "aten::view",
    "aten::view.dtype",
    "aten::_reshape_alias",
    "aten::unfold",
    "aten::view_as_real",
    "aten::view_as_complex",
    "aten::_conj",
)


def view_kernel(name: str) -> object:
    """Return a kernel that makes the view by PyTorch's Meta kernel."""
    redispatch = redispatch_of(resolve(name))

    def kernel(*args: object, **kwargs: object) -> torch.Tensor:
        result: torch.Tensor = redispatch(META_KEYS, *args, **kwargs)
        return result

    return kernel


_neg_view = redispatch_of(torch.ops.aten._neg_view.default)
_as_strided = redispatch_of(torch.ops.aten.as_strided.default)


def as_strided(
    self: torch.Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> torch.Tensor:
    """Implement `torch.as_strided`: any geometry that stays inside the storage."""
    last = int(self.storage_offset()) if storage_offset is None else storage_offset
    if last < 0 or len(size) != len(stride) or (stride and min(stride) < 0):
        _refuse_geometry(len(size), stride, last)
    result: torch.Tensor = _as_strided(META_KEYS, self, size, stride, storage_offset)
    for n, step in zip(size, stride, strict=True):
        last += (n - 1) * step
    spec: Spec = value_of(self).spec
    if last >= spec.numel or spec.dtype is not self.dtype:
        check_bounds(result)
    return result


def _refuse_geometry(dims: int, stride: list[int], offset: int) -> None:
    """Refuse geometries that the Meta kernel of PyTorch 2.11 accepts, with the CPU's message."""
    if dims != len(stride):
        raise RuntimeError("mismatch in length of strides and shape")
    if any(step < 0 for step in stride):
        raise RuntimeError(f"as_strided: Negative strides are not supported at the moment, got strides: {stride}")
    raise RuntimeError(f"Tensor: invalid storage offset {offset}")


def as_strided_(
    self: torch.Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> torch.Tensor:
    """Implement `Tensor.as_strided_`, in which `transpose_`, `unsqueeze_` and their like end."""
    offset = int(self.storage_offset()) if storage_offset is None else storage_offset
    as_strided(self, size, stride, offset)
    # The Meta kernel of `as_strided_` would look at the size of the storage, which PyTorch believes to be empty.
    return point_at(self, self.untyped_storage(), offset, size, stride)


def neg_view(self: torch.Tensor) -> torch.Tensor:
    """Implement `torch._neg_view`. A tensor that shows all of a real storage must not look like the storage itself."""
    value = value_of(self)
    if not value.spec.is_complex and shows_all(self, value.spec):
        flat = wrap(value).as_strided((1, value.spec.numel, 1), (value.spec.numel, 1, 1), 0).clone()
        with LOCK:
            is_done = replaced((self.untyped_storage(),), (value,), (value_of(flat),))
        if not is_done:  # another thread has written to it meanwhile
            return neg_view(self)
    result: torch.Tensor = _neg_view(META_KEYS, self)
    return result


def check_bounds(tensor: torch.Tensor) -> None:
    """Raise as PyTorch does if `tensor` reaches beyond its storage, whose own size PyTorch does not know here."""
    spec: Spec = value_of(tensor).spec
    geometry = Geometry(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
    needed = geometry.extent * tensor.element_size()
    has = spec.numel * spec.dtype.itemsize
    if needed > has:
        raise RuntimeError(
            f"setStorage: sizes {list(geometry.size)}, strides {list(geometry.stride)}, storage offset "
            f"{geometry.offset}, and itemsize {tensor.element_size()} requiring a storage size of {needed} are out of "
            f"bounds for storage of size {has}"
        )
