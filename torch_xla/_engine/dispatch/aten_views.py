"""View operators: PyTorch's kernels for tensors without memory make the view; nothing is recorded."""

import torch

from ..compat.abi import take_meta_kernels
from ..compat.names import torch as private
from ..compat.names.torch import redispatch_of
from ..compat.names.torch_dispatch_keys import (
    DispatchKeySet,
    register_above_autograd,
    stands_for_another,
    with_meta,
)
from ..ir.view.geometry import Geometry
from ..tensor.device import LOCK
from ..tensor.storage import META_KEYS, point_at, replaced, shows_all, value_of, wrap
from ..tensor.views import refuse_beyond
from .op_schema import resolve

# The views without a composite kernel. All others (`transpose`, `select`, `slice`, …) end in one of these.
NAMES = (
    "aten::as_strided",
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


def register_views() -> torch.library.Library:
    """Let C++ make the views of `NAMES` where it can, and look at what `torch.as_strided` is asked for."""
    take_meta_kernels(map(resolve, NAMES))
    library = private.raw_library("aten")
    register_above_autograd(library, "as_strided", as_strided)
    return library


_neg_view = redispatch_of(torch.ops.aten._neg_view.default)
_as_strided = redispatch_of(torch.ops.aten.as_strided.default)


def as_strided(
    keys: DispatchKeySet,
    self: torch.Tensor,
    size: list[int],
    stride: list[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """Implement `torch.as_strided` above autograd, with the `keys` of the call: any geometry inside the storage.

    `transpose` and its like come below autograd, and never leave the storage. Fake and wrapping tensors have none.
    """
    if not stands_for_another(self, keys):
        _refuse_geometry(self, size, stride, storage_offset)
    result: torch.Tensor = _as_strided(with_meta(keys), self, size, stride, storage_offset)
    if not stands_for_another(result, keys):
        check_bounds(result)
    return result


def _refuse_geometry(self: torch.Tensor, size: list[int], stride: list[int], storage_offset: int | None) -> None:
    """Refuse geometries that the Meta kernel of PyTorch 2.11 accepts, with the CPU's message."""
    if len(size) != len(stride):
        raise RuntimeError("mismatch in length of strides and shape")
    if any(step < 0 for step in stride):
        raise RuntimeError(f"as_strided: Negative strides are not supported at the moment, got strides: {stride}")
    offset = int(self.storage_offset()) if storage_offset is None else storage_offset
    if offset < 0:
        raise RuntimeError(f"Tensor: invalid storage offset {offset}")


def as_strided_(
    self: torch.Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> torch.Tensor:
    """Implement `Tensor.as_strided_`, in which `transpose_`, `unsqueeze_` and their like end."""
    offset = int(self.storage_offset()) if storage_offset is None else storage_offset
    as_strided(META_KEYS, self, size, stride, offset)
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
    geometry = Geometry(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
    refuse_beyond(value_of(tensor).spec, geometry, tensor.dtype)
