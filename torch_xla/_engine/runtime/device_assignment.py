"""Device assignment: the device or devices that run a program, in the order the program knows them by."""

from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from ..compat.names.jax import is_compile_only

# The axis of the mesh along which each process runs a program on values of its own.
REPLICAS = "replicas"


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """The devices of a program. Interned: equal targets are one object, so `is` compares them.

    Without a `mesh` it is one device of this process. With one, and `axis`, each process runs the program on arrays of
    its own, of the sizes that the graph says, and collectives go along that axis. With a mesh and no axis there is one
    program for all devices, whose arrays are spread over them.
    """

    devices: tuple[jax.Device, ...]
    mesh: jax.sharding.Mesh | None
    axis: str | None
    platform: str  # as JAX calls it: "cpu", "gpu", "tpu"
    kind: str  # the model of the devices
    processes: tuple[int, ...]  # that take part, in order
    local: tuple[jax.Device, ...]  # the devices of this process

    @property
    def device(self) -> jax.Device:
        """The first device of this process: its memory is what this process puts alone."""
        return self.local[0]

    @property
    def is_host(self) -> bool:
        """Return whether the devices' memory is the host's, so that copies need no transfer."""
        return self.platform == "cpu"

    @property
    def is_compile_only(self) -> bool:
        """Return whether the devices are of a topology: programs are compiled for them, and do not run."""
        return is_compile_only(self.devices[0])

    @property
    def is_spread(self) -> bool:
        """Return whether an array may be divided among several of the devices; XLA then decides on the shards."""
        return self.mesh is not None and self.axis is None

    @property
    def everywhere(self) -> jax.sharding.Sharding:
        """Return JAX's sharding for an array with a copy on each device, or, with one device, for an array on it."""
        if self.mesh is not None and self.axis is None:
            return NamedSharding(self.mesh, PartitionSpec())
        return SingleDeviceSharding(self.device)

    @property
    def replicas(self) -> int:
        """Return the number of processes that run the program, each on its own arrays."""
        return len(self.devices) if self.axis is not None else 1

    @property
    def name(self) -> str:
        """Its devices as JAX calls them, such as "cpu:0"."""
        names = ", ".join(f"{device.platform}:{device.id}" for device in self.devices)
        return f"{names} along {self.axis}" if self.axis else names

    def __repr__(self) -> str:
        return f"<target {self.name}>"


_targets: dict[tuple[tuple[jax.Device, ...], str | None, bool], Target] = {}


def of_device(device: jax.Device) -> Target:
    """Return one device alone."""
    return _interned((device,), None, None)


def of_replicas(devices: tuple[jax.Device, ...]) -> Target:
    """Return one device of each process: each runs the same program on arrays of its own."""
    return _interned(devices, REPLICAS, jax.sharding.Mesh(np.array(devices), (REPLICAS,)))


def of_mesh(devices: tuple[jax.Device, ...]) -> Target:
    """Return a target of all these devices, which share programs. They form a grid whose sides are primes."""
    sides = _primes(len(devices))
    mesh = jax.sharding.Mesh(np.array(devices, dtype=object).reshape(sides), [str(axis) for axis in range(len(sides))])
    return _interned(devices, None, mesh)


def _primes(number: int) -> list[int]:
    found, side = [], 2
    while number > 1:
        while number % side == 0:
            found.append(side)
            number //= side
        side += 1
    return found or [1]


def _interned(devices: tuple[jax.Device, ...], axis: str | None, mesh: jax.sharding.Mesh | None) -> Target:
    key = devices, axis, mesh is not None
    found = _targets.get(key)
    if found is None:
        processes = tuple(dict.fromkeys(device.process_index for device in devices))
        here = devices[0].client.process_index()
        # A device that only exists to compile for may be of another machine: it does as one of this process.
        local = tuple(device for device in devices if device.process_index == here) or devices
        first = devices[0]
        target = Target(devices, mesh, axis, first.platform, first.device_kind, processes, local)
        found = _targets.setdefault(key, target)
    return found
