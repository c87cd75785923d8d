"""Convert tensors to JAX arrays and back without a copy: a tensor's buffer is a `jax.Array`."""

import jax
import torch

from .. import dtypes
from ..ir.tape import Value
from ..ir.value_spec import contiguous_stride, spec_of
from ..lowering.machinery.jax_sharding import logical, of_array
from ..lowering.machinery.jax_sharding import to_jax as sharding_of_jax
from ..runtime import buffers
from ..step.sync import materialise
from ..tensor.device import LOCK, Device, current_index, device_at, device_behind
from ..tensor.storage import shows_all, snapshot, value_of, wrap


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """Return the current elements of `tensor` as an array: its own buffer if that has them in the tensor's layout."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "xla":
        came = f"one on {tensor.device}" if isinstance(tensor, torch.Tensor) else f"a {type(tensor).__name__}"
        raise TypeError(f"to_jax() takes a tensor on an xla device; got {came}. Move it with `.to('xla')`.")
    tensor = tensor.detach().resolve_conj().resolve_neg()
    with LOCK:
        value = value_of(tensor)
        if not shows_all(tensor, value.spec):
            value = snapshot(tensor)
    materialise(value)  # without the lock: others may record while it is compiled
    with LOCK:
        buffer: jax.Array = logical(materialise(value), value.spec.size, value.device.target)
        if buffer.is_deleted():
            raise buffers.deleted_error(buffer)
        # An array never changes, and the caller keeps it: nothing recorded so far or later may take its memory.
        value.shared = True
        if value.tape is not None and value.slot not in value.tape.shared:
            value.tape.shared.append(value.slot)
    wanted = dtypes.to_jax(tensor.dtype)
    return buffers.converted(buffer, wanted)


def from_jax(array: object) -> torch.Tensor:
    """Return a tensor whose buffer is `array`. Writing to the tensor moves it to memory of its own."""
    if not isinstance(array, jax.Array):
        raise TypeError(f"from_jax() takes a jax.Array; got a {type(array).__name__}. jax.numpy.asarray makes one.")
    if isinstance(array, jax.core.Tracer):
        raise TypeError("from_jax() got a value that JAX is tracing; call torch_xla operations outside jax.jit")
    homes = sorted(array.devices(), key=lambda device: device.id)
    shared = device_at(current_index())
    if shared.spread is not None and (len(homes) == 1 or set(homes) == set(shared.spread.devices)):
        return _over_devices(array, shared)
    if len(homes) != 1:
        raise ValueError(f"from_jax() takes an array on one device; this one is on {len(homes)}: {homes}")
    device = device_behind(homes[0])
    if homes[0] is not device.target.device:
        array = buffers.move(array, device.target)
    size = tuple(array.shape)
    value = Value(spec_of(size, contiguous_stride(size), dtypes.to_torch(array.dtype)), device, None, -1)
    value.buffer = array
    value.shared = True
    return wrap(value)


def _over_devices(array: jax.Array, device: Device) -> torch.Tensor:
    """Return a tensor on all devices of an ordinal: divided as the array, or a copy of one device's array on each."""
    target = device.target
    sharding = of_array(array, target) if len(array.devices()) > 1 else None
    size = tuple(array.shape)
    value = Value(spec_of(size, contiguous_stride(size), dtypes.to_torch(array.dtype)), device, None, -1)
    value.buffer = buffers.place(array, sharding_of_jax(sharding, target))
    value.shared = value.buffer is array
    return wrap(value)
