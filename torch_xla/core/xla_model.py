"""Devices, steps, random state and saving: `import torch_xla.core.xla_model as xm`.

An argument for a device may be a `torch.device`, `"xla"`, `"xla:1"`, an ordinal, or the real name `"CPU:1"`. The
default is the device of this thread (`torch_xla.device`).
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, TypedDict

import torch

from .._engine import input, runtime, step, transfer
from .._engine import tensor as _tensor
from .._engine.compat import removed_names
from .._engine.compat.names.torch import constant_in_graphs
from .._engine.lowering.machinery import xla_op_schemas
from .._engine.metrics import RateTracker as RateTracker
from .._engine.pytree import ToXlaTensorArena as ToXlaTensorArena
from .._engine.pytree import with_tensors_replaced as replaced
from .._engine.tensor import device as devices
from . import collectives
from .collectives import REDUCE_AND as REDUCE_AND
from .collectives import REDUCE_MAX as REDUCE_MAX
from .collectives import REDUCE_MIN as REDUCE_MIN
from .collectives import REDUCE_MUL as REDUCE_MUL
from .collectives import REDUCE_OR as REDUCE_OR
from .collectives import REDUCE_SUM as REDUCE_SUM
from .collectives import CoalescingBuckets as CoalescingBuckets
from .collectives import _fetch_gradients as _fetch_gradients
from .collectives import all_gather as all_gather
from .collectives import all_gather_bucketized as all_gather_bucketized
from .collectives import all_reduce as all_reduce
from .collectives import all_reduce_bucketized_gradients as all_reduce_bucketized_gradients
from .collectives import all_to_all as all_to_all
from .collectives import broadcast_master_param as broadcast_master_param
from .collectives import collective_broadcast as collective_broadcast
from .collectives import collective_permute as collective_permute
from .collectives import do_on_ordinals as do_on_ordinals
from .collectives import get_local_ordinal as get_local_ordinal
from .collectives import get_ordinal as get_ordinal
from .collectives import is_master_ordinal as is_master_ordinal
from .collectives import master_print as master_print
from .collectives import mesh_reduce as mesh_reduce
from .collectives import recv as recv
from .collectives import reduce_gradients as reduce_gradients
from .collectives import reduce_scatter as reduce_scatter
from .collectives import reduce_scatter_bucketized as reduce_scatter_bucketized
from .collectives import rendezvous as rendezvous
from .collectives import send as send
from .collectives import set_replication as set_replication
from .collectives import xla_rendezvous as xla_rendezvous
from .collectives import xrt_world_size as xrt_world_size

__getattr__ = removed_names.asked_of(__name__)

# Where operators of `torch.ops.xla` are defined: programs add kernels of their own to it.
XLA_LIB = xla_op_schemas.LIBRARY

DeviceLike = torch.device | str | int | None


@constant_in_graphs
def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """Return the `xla` device of this thread, or the one with ordinal `n`, which becomes this thread's.

    `devkind` must be the kind of the devices of this process; in earlier releases a process had several kinds. New
    programs call `torch_xla.device`. Raises `RuntimeError` if there is no such device.

    >>> import torch_xla.core.xla_model as xm
    >>> xm.xla_device()
    device(type='xla', index=0)
    """
    if devkind is not None and not runtime.is_device_type(devkind):
        raise RuntimeError(
            f"xla_device(devkind={devkind!r}): the devices of this process are {runtime.selected_device_type()}"
        )
    if n is not None:
        devices.set_current_index(_tensor.device_index_of(n))
    return _tensor.device_named().torch_device


def get_xla_supported_devices(max_devices: int | None = None, devkind: str | None = None) -> list[str]:
    """Return the names of the `xla` devices of this process, at most `max_devices` of them.

    >>> import torch_xla.core.xla_model as xm
    >>> xm.get_xla_supported_devices(max_devices=1)
    ['xla:0']
    """
    if devkind is not None and not runtime.is_device_type(devkind):
        return []
    return [f"xla:{index}" for index in devices.ordinals()][:max_devices]


def xla_device_hw(device: DeviceLike = None) -> str:
    """Return the kind of hardware behind an `xla` device: `"CPU"`, `"CUDA"`, `"TPU"` or a plugin's name.

    >>> import torch_xla.core.xla_model as xm
    >>> xm.xla_device_hw(xm.xla_device()) in ("CPU", "CUDA", "TPU")
    True
    """
    _tensor.device_index_of(device)
    return runtime.selected_device_type()


def xla_device_kind(device: DeviceLike = None) -> str:
    """Return the vendor's name for the model of the hardware, such as `"cpu"` or `"NVIDIA H100 80GB HBM3"`."""
    return _tensor.device_named(device).target.kind


def xla_real_devices(devices: Sequence[DeviceLike] | None = None) -> list[str]:
    """Return the names of the hardware behind `devices`, by default behind all devices of this process: `['CPU:0']`.

    >>> import torch_xla.core.xla_model as xm
    >>> xm.xla_real_devices(["xla:0"])[0].endswith(":0")
    True
    """
    return _tensor.real_device_names(devices)


def xla_replication_devices(local_devices: Sequence[DeviceLike] | None = None) -> list[str]:
    """Return the names of the hardware that runs this program if `local_devices` do, by default all of this process."""
    return _tensor.real_device_names(local_devices)


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on an `xla` device.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.is_xla_tensor(torch.ones(1)), xm.is_xla_tensor(torch.ones(1, device="xla"))
    (False, True)
    """
    return tensor.device.type == "xla"


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """End the step: the old name of `torch_xla.sync`. With nothing recorded it costs about a microsecond.

    >>> import torch_xla.core.xla_model as xm
    >>> xm.mark_step()
    """
    step.end_step(wait, reset_scope)


def wait_device_ops(devices: Sequence[DeviceLike] = ()) -> None:
    """Wait until all work started on `devices` has ended; with an empty list, on all devices.

    Recorded operations that are not started yet stay recorded (`torch_xla.sync` starts them). Raises the errors of
    the device.

    >>> import torch_xla.core.xla_model as xm
    >>> xm.wait_device_ops()
    """
    step.wait_for_devices([_tensor.device_named(device) for device in devices])


def unlazy(tensors: Sequence[torch.Tensor]) -> None:
    """Compute `tensors` and wait for them. This is for measurements.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.unlazy([torch.ones(3, device="xla") * 2])
    """
    transfer.compute_tensors(tensors)
    step.wait_for_devices()


def add_step_closure(closure: Callable[..., object], args: tuple[object, ...] = (), run_async: bool = False) -> None:
    """Call `closure(*args)` at the end of this step, after the step's program has been started.

    A closure reports values without a separate evaluation: tensors among `args` are kept and become results of the
    step. Closures run in the order in which they were added. If a closure raises, `sync()` raises its exception, and
    the remaining closures run at the end of the next step. With `run_async=True` the closure runs in a background
    thread, where waiting for values does not stop the program. Tensors among `args` then have their values of the end
    of this step, and a later `sync()` raises the closure's exception. At most `XLA_MAX_ASYNC_QUEUE` closures wait for
    that thread.

    >>> import torch, torch_xla, torch_xla.core.xla_model as xm
    >>> loss = torch.ones(4, device="xla").sum()
    >>> xm.add_step_closure(lambda loss: print(f"loss {loss.item():.1f}"), args=(loss,))
    >>> torch_xla.sync()
    loss 4.0
    """
    step.add_closure(closure, args, run_async)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: dict[str, Any] | None = None,
    groups: collectives.Groups = None,
    pin_layout: bool = True,
) -> Any:
    """Average the gradients over the replicas, call `optimizer.step(**optimizer_args)`, and return its result.

    `barrier=True` ends the step too (`torch_xla.sync`); a loop over a `MpDeviceLoader` does that by itself.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> weight = torch.ones(2, device="xla", requires_grad=True)
    >>> weight.sum().backward()
    >>> xm.optimizer_step(torch.optim.SGD([weight], lr=0.5), barrier=True)
    >>> weight.tolist()
    [0.5, 0.5]
    """
    reduce_gradients(optimizer, groups=groups, pin_layout=pin_layout)
    result = optimizer.step(**(optimizer_args or {}))
    if barrier:
        step.end_step()
    return result


def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """Keep the compiler from moving or merging computations across this point, in place.

    Operations that later read one of `tensors` run after all of `tensors` are computed. The values do not change.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> x = torch.ones(2, device="xla")
    >>> xm.optimization_barrier_([x])
    >>> x.tolist()
    [1.0, 1.0]
    """
    _tensor.put_barrier(tensors)


def save(
    data: object, file_or_path: str | BinaryIO, master_only: bool = True, global_master: bool = False, sync: bool = True
) -> None:
    """Save `data` as `torch.save` does, with its `xla` tensors on the CPU, so that any machine can load it.

    `data` is any nested combination of Python objects. Tensors that share memory, such as tied weights, share it in the
    file too. With `master_only` the replica with ordinal 0 of each machine writes, or with `global_master` that of the
    whole program. Without `master_only` every replica writes, each to its own file. With `sync`, wait for the other
    replicas.

    >>> import io, torch, torch_xla.core.xla_model as xm
    >>> file = io.BytesIO()
    >>> xm.save({"weight": torch.ones(2, device="xla")}, file)
    >>> _ = file.seek(0)
    >>> torch.load(file)
    {'weight': tensor([1., 1.])}
    """
    if not master_only or is_master_ordinal(local=not global_master):
        torch.save(_maybe_convert_to_cpu(data), file_or_path)
    if sync:
        rendezvous("torch_xla.core.xla_model.save")


def _maybe_convert_to_cpu(data: object, convert: bool = True) -> object:
    """Return `data` with its `xla` tensors on the CPU, copied in one batch. `convert=False` changes nothing."""
    return replaced(data, is_xla_tensor, transfer.copy_to_host) if convert else data


def send_cpu_data_to_device(datas: object, device: DeviceLike, input_sharding: object = None) -> object:
    """Copy the CPU tensors in `datas`, any nested combination of Python objects, to `device`.

    Returns new containers where a tensor moved, and does not change those of `datas`. For one tensor, returns a list of
    one tensor. `input_sharding` is a `ShardingSpec`, or a structure of them, as in `MpDeviceLoader`.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.send_cpu_data_to_device({"images": [torch.ones(2)]}, "xla:0")
    {'images': [tensor([1., 1.], device='xla:0')]}
    """
    if isinstance(datas, torch.Tensor):
        datas = [datas]
    if input_sharding is not None:
        return input.place_batch(datas, _tensor.device_named(device), input_sharding)
    return transfer.moved_to_device(datas, _tensor.device_named(device).torch_device)


def check_view_sharing(obj: object) -> None:
    """Raise `RuntimeError` if two tensors in `obj` are different views of one storage. Equal views are allowed.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> x = torch.ones(4, device="xla")
    >>> xm.check_view_sharing([x, x, x.clone()])
    """
    transfer.refuse_shared_views(obj)


def set_rng_state(seed: int, device: DeviceLike = None) -> None:
    """Set the random state of a device: `seed` is any int, such as the result of `get_rng_state`.

    >>> import torch_xla.core.xla_model as xm
    >>> xm.set_rng_state(5)
    >>> xm.get_rng_state()
    5
    """
    _tensor.set_random_state(seed, _tensor.device_index_of(device))


def get_rng_state(device: DeviceLike = None) -> int:
    """Return the random state of a device, an int from 0 to 2**63 - 1. Every draw changes it."""
    return _tensor.random_state_of(_tensor.device_index_of(device))


@contextlib.contextmanager
def fork_rng(device: DeviceLike = None, enabled: bool = True) -> Iterator[None]:
    """Enter a `with` block that restores a device's random state at its end; with `enabled=False`, do nothing.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> with xm.fork_rng():
    ...     inside = torch.rand(2, device="xla")
    >>> torch.equal(inside, torch.rand(2, device="xla"))
    True
    """
    index = _tensor.device_index_of(device)
    state = _tensor.random_state_of(index)
    try:
        yield
    finally:
        if enabled:
            _tensor.set_random_state(state, index)


class MemoryInfo(TypedDict):
    """The result of `get_memory_info`: bytes, and under the old names units of 1024 bytes."""

    bytes_used: int
    bytes_limit: int
    peak_bytes_used: int
    kb_free: int
    kb_total: int


def get_memory_info(device: DeviceLike = None) -> MemoryInfo:
    """Return the amount of memory that a device has, and the amounts that are used and were used at most.

    The client of the CPU does not count memory. There, the used memory is the sum of the living buffers, the limit is
    the memory of the machine or container, and the peak is the highest value that a call of this function has seen.

    >>> import torch_xla.core.xla_model as xm
    >>> info = xm.get_memory_info(xm.xla_device())
    >>> 0 <= info["bytes_used"] <= info["bytes_limit"] and info["kb_free"] <= info["kb_total"]
    True
    """
    used = runtime.memory_usage(_tensor.device_named(device).target.device)
    return MemoryInfo(
        bytes_used=used.used,
        bytes_limit=used.limit,
        peak_bytes_used=used.peak,
        kb_free=max(0, used.limit - used.used) // 1024,
        kb_total=used.limit // 1024,
    )


def get_stablehlo(tensors: Sequence[torch.Tensor] | None = None) -> str:
    """Return the recorded computation as StableHLO text, without running it.

    `tensors` are the results of the computation. Without `tensors`, return the program that the next `sync()` runs:
    everything recorded on this thread's device that is still referenced. Under `XLA_HLO_DEBUG=1` the text contains the
    line of your program for each operation.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> "stablehlo.cosine" in xm.get_stablehlo([torch.cos(torch.ones(2, device="xla"))])
    True
    """
    return step.pending_stablehlo_text(tensors or ())


def get_stablehlo_bytecode(tensors: Sequence[torch.Tensor] | None = None) -> bytes:
    """Return the recorded computation as MLIR bytecode; see `get_stablehlo`.

    >>> import torch, torch_xla.core.xla_model as xm
    >>> xm.get_stablehlo_bytecode([torch.ones(2, device="xla")])[:2]
    b'ML'
    """
    return step.pending_stablehlo_bytecode(tensors or ())
