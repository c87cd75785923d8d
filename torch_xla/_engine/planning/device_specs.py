"""Peak rates of devices, from their makers, by which the time of a planned step is estimated."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_GB, _T, _G = 10**9, 10**12, 10**9


@dataclass(frozen=True)
class DeviceSpec:
    """The peak rates of one device.

    `memory` is in bytes. `flops` has floating-point operations a second for products of each dtype, by XLA's names
    ("bf16", "f16", "f32", "f64"); one that is missing has the rate of "f32". `bandwidth` is that of the device's
    memory and `link_bandwidth` what it can send to others of its kind at once, both in bytes a second. `clock` is the
    number of cycles a second: the compiler of a TPU estimates the cycles of a program.

    >>> from torch_xla.debug import DeviceSpec
    >>> mine = DeviceSpec("mine", memory=2**34, flops={"bf16": 1e14, "f32": 5e13}, bandwidth=1e12, link_bandwidth=5e10)
    >>> mine.rate("bf16"), mine.rate("f64")
    (100000000000000.0, 50000000000000.0)
    """

    name: str
    memory: int
    flops: Mapping[str, float]
    bandwidth: float
    link_bandwidth: float
    clock: float = 0.0

    def rate(self, dtype: str) -> float:
        """Return floating-point operations a second for products of this dtype."""
        return self.flops.get(dtype) or self.flops["f32"]


def _tpu(name: str, memory: int, bf16: float, bandwidth: float, link: float, clock: float) -> DeviceSpec:
    # XLA multiplies float32 on a TPU as bfloat16 unless more precision is asked for.
    rates = {"bf16": bf16 * _T, "f32": bf16 * _T}
    return DeviceSpec(name, memory * 2**30, rates, bandwidth * _G, link * _G, clock * _G)


def _gpu(name: str, memory: int, bf16: float, f32: float, f64: float, bandwidth: float, link: float) -> DeviceSpec:
    rates = {"bf16": bf16 * _T, "f16": bf16 * _T, "f32": f32 * _T, "f64": f64 * _T}
    return DeviceSpec(name, memory * _GB, rates, bandwidth * _G, link * _G)


# By name; programs may add their own. Rates without sparsity; links in one direction.
device_specs: dict[str, DeviceSpec] = {
    spec.name: spec
    for spec in (
        _tpu("TPU v4", 32, 275, 1228, 300, 1.05),
        _tpu("TPU v5e", 16, 197, 819, 200, 1.5),
        _tpu("TPU v5p", 95, 459, 2765, 600, 1.75),
        _tpu("TPU v6e", 32, 918, 1640, 448, 1.75),
        _gpu("A100 40GB", 40, 312, 19.5, 9.7, 1555, 300),
        _gpu("A100 80GB", 80, 312, 19.5, 9.7, 2039, 300),
        _gpu("H100", 80, 989, 67, 34, 3350, 450),
        _gpu("H200", 141, 989, 67, 34, 4800, 450),
        _gpu("L4", 24, 121, 30, 0.5, 300, 32),
    )
}

# PJRT's names, where they differ.
_KINDS = {"tpu v5 lite": "TPU v5e", "tpu v5lite": "TPU v5e", "tpu v5": "TPU v5p", "tpu v6 lite": "TPU v6e"}


def spec_named(name: str) -> DeviceSpec:
    """Return the spec with this name; raises `ValueError` for a name that is not known."""
    found = device_specs.get(name)
    if found is None:
        raise ValueError(
            f"plan(device={name!r}): no such device is known. Known are {', '.join(map(repr, device_specs))}; add one "
            "by torch_xla.debug.device_specs[name] = torch_xla.debug.DeviceSpec(...), or give the spec itself."
        )
    return found


def spec_of_kind(kind: str) -> DeviceSpec | None:
    """Return the spec of a device that PJRT calls `kind`, if it is known."""
    named = _KINDS.get(kind.lower(), kind)
    if named in device_specs:
        return device_specs[named]
    # A GPU's model is a word among those of its maker, its socket and its memory: "NVIDIA A100-SXM4-80GB".
    words = re.split(r"[\s-]+", kind)
    matching = [name for name in device_specs if name.split()[0] in words and name.split()[0] != "TPU"]
    sized = [name for name in matching if name.split()[-1] in words]
    return device_specs[(sized or matching)[0]] if matching else None
