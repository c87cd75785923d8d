"""`torch.UntypedStorage`, `copy` and `pickle` for memory on the `xla` device.

PyTorch's methods would look at memory that is not there. Each is replaced by one that looks at the device of the
storage first and leaves all other devices to the method it replaces.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # which registers how it sends storages
from torch import Tensor, UntypedStorage

from ...compat import patch_list
from ...compat.names import torch as private
from ...runtime import platform
from ...transfer import storage_bytes


def patch_storages() -> None:
    """Replace the methods."""
    ours: dict[str, Callable[..., Any]] = {
        "nbytes": storage_bytes.nbytes,
        "len": storage_bytes.nbytes,
        "data_ptr": _address,
        "resize": _resize,
        "fill": _fill,
        "getitem": _get,
        "setitem": _set,
        "iter": _iterate,
        "new": _new_like,
        "is_shared": _is_shared,
        "write_file": _to_file,
        "set_from_file": _from_file,
        "share_memory": _share_memory,
    }
    methods = patch_list.storage_methods
    for name, method in ours.items():
        methods[name].wrap(functools.partial(_on_xla, method))
    methods["copy"].wrap(_copying)
    patch_list.storage_new.wrap(_making)
    patch_list.data_ptr.wrap(_addressing)
    _send_to_processes()
    patch_list.deepcopy.wrap(_deepcopying)
    patch_list.reduce_ex.wrap(_reducing)


def _on_xla(ours: Callable[..., object], original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def method(self: UntypedStorage, *args: object, **kwargs: object) -> object:
        return (ours if self.device.type == "xla" else original)(self, *args, **kwargs)

    return method


# The address of the next storage whose address is read. There is no memory at it: programs compare addresses to find
# shared memory, and disjoint numbers are enough for that.
_next_address = 1 << 40


def _address(self: Any) -> int:
    global _next_address
    address: int | None = getattr(self, "address", None)
    size = storage_bytes.nbytes(self)
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
    storage_bytes.resize(self, size)
    return self


def _fill(self: UntypedStorage, value: int) -> UntypedStorage:
    storage_bytes.as_bytes(self).fill_(value & 255)
    return self


def _get(self: UntypedStorage, index: object) -> int:
    return storage_bytes.host_copy(self)[index]


def _set(self: UntypedStorage, index: Any, value: int) -> None:
    if isinstance(index, int) and not 0 <= index < self.nbytes():
        raise RuntimeError("out of bounds")
    storage_bytes.as_bytes(self)[index] = value


def _iterate(self: UntypedStorage) -> Iterator[int]:
    return iter(storage_bytes.host_copy(self).tolist())


def _new_like(self: UntypedStorage) -> UntypedStorage:
    return storage_bytes.new(0, self.device)


def _is_shared(self: UntypedStorage) -> bool:
    return False


def _to_file(self: UntypedStorage, *args: object) -> Any:
    return private.write_storage(storage_bytes.host_copy(self), *args)


def _from_file(self: UntypedStorage, *args: object) -> UntypedStorage:
    host = UntypedStorage(self.nbytes())
    private.read_storage(host, *args)
    return self.copy_(host)


def _share_memory(self: UntypedStorage, *args: object, **kwargs: object) -> UntypedStorage:
    raise RuntimeError("memory of an xla device cannot be shared between processes; share a copy on the CPU: `x.cpu()`")


def _copying(original: Callable[..., Any]) -> Callable[..., object]:
    @functools.wraps(original)
    def copy_(self: UntypedStorage, source: Any, non_blocking: bool | None = None) -> UntypedStorage:
        plain = private.untyped(source) if isinstance(source, torch.TypedStorage) else source
        if "xla" not in (self.device.type, plain.device.type):
            return original(self, source, non_blocking)  # type: ignore[no-any-return]
        storage_bytes.copy_into(self, plain)
        return self

    return copy_


def _making(original: Callable[..., Any]) -> object:
    @functools.wraps(original)
    def __new__(cls: object, *args: Any, **kwargs: Any) -> UntypedStorage:
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "xla":
            return original(cls, *args, **kwargs)
        given = args[0] if args else kwargs.get("size", 0)
        if isinstance(given, int):
            return storage_bytes.new(given, torch.device(device))
        made = torch.tensor(list(given), dtype=torch.uint8, device=device)
        return made.untyped_storage()

    return staticmethod(__new__)


def _deepcopying(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def __deepcopy__(self: Tensor, memo: dict[int, object]) -> object:
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


def _reducing(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def reduce_ex(self: Tensor, proto: object) -> object:
        is_plain = self.device.type == "xla" and type(self).__torch_dispatch__ is Tensor.__torch_dispatch__
        if not is_plain or self.layout is not torch.strided:
            return original(self, proto)
        torch.utils.hooks.warn_if_has_hooks(self)
        return private.reduced(self)

    return reduce_ex


def _send_to_processes() -> None:
    """Send tensors to other processes as copies, since device memory cannot be shared."""
    share = ForkingPickler._extra_reducers[UntypedStorage]  # type: ignore[attr-defined]

    def reduce(storage: UntypedStorage) -> Any:
        if storage.device.type != "xla":
            return share(storage)
        # An exception in a queue's thread is lost, and the receiver would wait for ever: so raise it in the receiver.
        try:
            platform.refuse_fork()
            return _received, (storage_bytes.host_copy(storage), str(storage.device))
        except RuntimeError as error:
            return _refused, (str(error),)

    ForkingPickler.register(UntypedStorage, reduce)


def _received(host: UntypedStorage, device: str) -> UntypedStorage:
    return storage_bytes.new(host.nbytes(), torch.device(device)).copy_(host)


def _refused(reason: str) -> UntypedStorage:
    raise RuntimeError(f"A tensor on an xla device could not be sent from another process: {reason}")
