"""Which memory a value is in: the device's, or the host's that the device can read."""

import jax
import torch
from torch import Tensor

from ..machinery.registry import lowers
from ..machinery.xla_op_schemas import define, differentiate

TO_HOST = define("place_to_host(Tensor t) -> Tensor", torch.empty_like)
TO_DEVICE = define("place_to_device(Tensor t) -> Tensor", torch.empty_like)


@lowers(TO_HOST)
def place_to_host(t: jax.Array) -> jax.Array:
    """Place the value in memory of the host. A CPU has no other."""
    return jax.device_put(t, jax.memory.Space.Host)


@lowers(TO_DEVICE)
def place_to_device(t: jax.Array) -> jax.Array:
    """Place the value in memory of the device."""
    return jax.device_put(t, jax.memory.Space.Device)


def _same(inputs: dict[str, torch.Tensor], grad: Tensor) -> dict[str, torch.Tensor]:
    return {"t": grad}


differentiate(TO_HOST, _same)
differentiate(TO_DEVICE, _same)
