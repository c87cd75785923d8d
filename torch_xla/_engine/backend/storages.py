"""What `torch.UntypedStorage`, `copy` and `pickle` do with memory on the `xla` device.

PyTorch's methods would look at memory that is not there. Each is replaced by one that looks at the device of the
storage first and leaves all other devices to the method it replaces.
"""

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # which registers how it sends storages
from torch import Tensor, UntypedStorage

from ..client import platform
from ..host import untyped


def patch_storages() -> None:
    """Replaces the methods; each entry says what it does for `xla` storages."""
    ours: dict[str, Callable[..., Any]] = {
        "nbytes": untyped.nbytes,
        "size": untyped.nbytes,
        "__len__": untyped.nbytes,
        "data_ptr": _address,
        "resize_": _resize,
        "fill_": _fill,
        "__getitem__": _get,
        "__setitem__": _set,
        "__iter__": _iterate,
        "tolist": _to_list,
        "new": _new_like,
        "is_shared": _is_shared,
        "_write_file": _write_file,
        "_set_from_file": _set_from_file,
        "share_memory_": _share_memory,
    }
    for name, method in ours.items():
        setattr(UntypedStorage, name, _on_xla(getattr(UntypedStorage, name), method))
    UntypedStorage.copy_ = _copying(UntypedStorage.copy_)  # type: ignore[method-assign]
    UntypedStorage.__new__ = _making(UntypedStorage.__new__)  # type: ignore[method-assign, assignment]
    Tensor.data_ptr = _addressing(Tensor.data_ptr)  # type: ignore[method-assign]
    _send_to_processes()
    # PyTorch copies and pickles tensors of a device called "xla" one by one, as if they had no storage: those that
    # share memory would no longer, and a part of a tensor would lose its strides.
    Tensor.__deepcopy__ = _deepcopying(Tensor.__deepcopy__)  # type: ignore[method-assign]
    Tensor._reduce_ex_internal = _reducing(Tensor._reduce_ex_internal)  # type: ignore[method-assign]


def _on_xla(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        return (ours if self.device.type == "xla" else original)(self, *args, **kwargs)

    return method


# Where the next storage asked for its address would lie. Nothing does lie there: programs use addresses to tell which
# tensors share memory, and for that numbers that never meet are enough.
_next_address = 1 << 40


def _address(self: Any) -> int:
    global _next_address
    address: int | None = getattr(self, "address", None)
    size = untyped.nbytes(self)
    if not size:
        return 0
    if address is None or size > self.room:
        address = self.address = _next_address
        self.room = size
        _next_address += (size // 256 + 1) * 256
    return address


def _addressing(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def data_ptr(self: Tensor) -> int:
        if self.device.type != "xla" or not self.numel():
            return original(self)
        return _address(self.untyped_storage()) + int(self.storage_offset()) * self.element_size()

    return data_ptr


def _resize(self: UntypedStorage, size: int) -> UntypedStorage:
    untyped.resize(self, size)
    return self


def _fill(self: UntypedStorage, value: int) -> UntypedStorage:
    untyped.as_bytes(self).fill_(value & 255)
    return self


def _get(self: UntypedStorage, index: Any) -> Any:
    return untyped.host_copy(self)[index]


def _set(self: UntypedStorage, index: Any, value: int) -> None:
    if isinstance(index, int) and not 0 <= index < self.nbytes():
        raise RuntimeError("out of bounds")
    untyped.as_bytes(self)[index] = value


def _iterate(self: UntypedStorage) -> Iterator[int]:
    return iter(untyped.host_copy(self).tolist())


def _to_list(self: UntypedStorage) -> list[int]:
    return untyped.host_copy(self).tolist()


def _new_like(self: UntypedStorage) -> UntypedStorage:
    return untyped.new(0, self.device)


def _is_shared(self: UntypedStorage) -> bool:
    return False


def _write_file(self: UntypedStorage, *args: Any) -> Any:
    return untyped.host_copy(self)._write_file(*args)


def _set_from_file(self: UntypedStorage, *args: Any) -> UntypedStorage:
    host = UntypedStorage(self.nbytes())
    host._set_from_file(*args)
    return self.copy_(host)


def _share_memory(self: UntypedStorage, *args: Any, **kwargs: Any) -> UntypedStorage:
    raise RuntimeError("memory of an xla device cannot be shared between processes; share a copy on the CPU: `x.cpu()`")


def _copying(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def copy_(self: UntypedStorage, source: Any, non_blocking: bool | None = None) -> UntypedStorage:
        plain = source._untyped_storage if isinstance(source, torch.TypedStorage) else source
        if "xla" not in (self.device.type, plain.device.type):
            return original(self, source, non_blocking)  # type: ignore[no-any-return]
        untyped.copy_into(self, plain)
        return self

    return copy_


def _making(original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "xla":
            return original(cls, *args, **kwargs)
        given = args[0] if args else kwargs.get("size", 0)
        if isinstance(given, int):
            return untyped.new(given, torch.device(device))
        made = torch.tensor(list(given), dtype=torch.uint8, device=device)
        return made.untyped_storage()

    return staticmethod(__new__)


def _deepcopying(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __deepcopy__(self: Tensor, memo: dict[int, Any]) -> Any:
        if type(self) is not Tensor or self.device.type != "xla" or not self.is_leaf or id(self) in memo:
            return original(self, memo)
        with torch.no_grad():
            storage = copy.deepcopy(self.untyped_storage(), memo)
            result = self.new_empty([])
            result.set_(storage, self.storage_offset(), self.size(), self.stride())  # type: ignore[call-overload]
            if self.is_conj():
                result = result.conj_physical()
            if self.is_neg():
                result = result.neg()
        result.requires_grad_(self.requires_grad)
        if self.grad is not None:
            result.grad = copy.deepcopy(self.grad, memo)
        memo[id(self)] = result
        result.__dict__ = copy.deepcopy(self.__dict__, memo)
        return result

    return __deepcopy__


def _reducing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _reduce_ex_internal(self: Tensor, proto: Any) -> Any:
        is_plain = self.device.type == "xla" and type(self).__torch_dispatch__ is Tensor.__torch_dispatch__
        if not is_plain or self.layout is not torch.strided:
            return original(self, proto)
        torch.utils.hooks.warn_if_has_hooks(self)
        shown: tuple[Any, ...] = (
            self.storage_offset(),
            tuple(self.size()),
            self.stride(),
            self.requires_grad,
            OrderedDict(),
        )
        metadata = torch._utils.get_tensor_metadata(self)
        last = (metadata,) if metadata else ()
        if self.dtype in torch.storage._new_dtypes():
            return torch._utils._rebuild_tensor_v3, (self.untyped_storage(), *shown, self.dtype, *last)
        return torch._utils._rebuild_tensor_v2, (self._typed_storage(), *shown, *last)

    return _reduce_ex_internal


def _send_to_processes() -> None:
    """Sends tensors to other processes as copies. Memory of the host would be shared; that of a device cannot be."""
    share = ForkingPickler._extra_reducers[UntypedStorage]  # type: ignore[attr-defined]

    def reduce(storage: UntypedStorage) -> Any:
        if storage.device.type != "xla":
            return share(storage)
        # What a queue's thread raises nobody hears, and the receiver would wait for ever: the receiver raises it.
        try:
            platform.refuse_fork()
            return _received, (untyped.host_copy(storage), str(storage.device))
        except RuntimeError as error:
            return _refused, (str(error),)

    ForkingPickler.register(UntypedStorage, reduce)


def _received(host: UntypedStorage, device: str) -> UntypedStorage:
    return untyped.new(host.nbytes(), torch.device(device)).copy_(host)


def _refused(reason: str) -> UntypedStorage:
    raise RuntimeError(f"A tensor on an xla device could not be sent from another process: {reason}")
