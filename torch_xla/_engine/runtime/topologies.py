"""Devices of machines that are not here: XLA compiles for them, but nothing runs on them."""

import functools
import importlib
import importlib.util
import re
from dataclasses import dataclass
from importlib.metadata import version

import jax
from jax.experimental import topologies

from .. import config
from ..atomic import uncollected
from ..compat.names.jax import is_compile_only as is_compile_only
from .first_client import client_environment
from .gpu_descriptions import TEXTS

_NAME = re.compile(r"(?:(\d+)\*)?([a-z0-9]+):(\d+(?:x\d+)*)")
_TPUS = ("v4", "v5e", "v5p", "v6e", "tpu7x")
_GPUS_PER_HOST = 8

# Options of the compilers for a machine that is not here. Without the first, the TPU's compiler refuses a program that
# is too large and tells nothing else about it; the second would measure kernels on the card.
OPTIONS: dict[str, dict[str, bool | int | float | str]] = {
    "tpu": {"xla_tpu_no_crash_on_oom": True},
    "gpu": {"xla_gpu_autotune_level": 0},
}


@dataclass(frozen=True, slots=True)
class Topology:
    """Devices to compile for: `name` is a kind of chip and how many, as in "v5e:4x4", "v5p:2x2x4" or "h100:8".

    With `slices` there are that many of them, connected by the data centre's network; "2*v5e:4x4" says the same.
    `target_config` describes a GPU that is not known by name: the text of XLA's `GpuTargetConfigProto`, as a process
    with the card gets it from XLA. Its name is then yours to choose.

    >>> from torch_xla.debug import Topology
    >>> Topology("v5e:4x4", slices=2)
    Topology(name='v5e:4x4', slices=2, target_config='')
    """

    name: str
    slices: int = 1
    target_config: str = ""

    @property
    def kind(self) -> str:
        """The kind of chip, such as "v5e"."""
        return self.name.partition(":")[0]

    def __str__(self) -> str:
        return f"{self.slices}*{self.name}" if self.slices > 1 else self.name


def named(topology: str | Topology) -> Topology:
    """Return the topology with a name; raises `ValueError` for a name that has another form."""
    given = topology if isinstance(topology, Topology) else Topology(topology)
    found = _NAME.fullmatch(given.name)
    if found is None or (found[2] not in _TPUS and found[2] not in TEXTS and not given.target_config):
        raise ValueError(
            f"topology={str(given)!r}: expected a kind of chip and how many, such as 'v5e:4x4', 'v5p:2x2x4' or "
            f"'h100:8'; '2*v5e:4x4' are two slices. Known kinds are {', '.join((*_TPUS, *TEXTS))}; for another GPU "
            "give torch_xla.debug.Topology('mine:8', target_config=...)."
        )
    slices = int(found[1] or 1) * given.slices
    return Topology(f"{found[2]}:{found[3]}", slices, given.target_config)


@functools.cache
def devices_of(topology: Topology) -> tuple[jax.Device, ...]:
    """Return the devices of a topology, slice by slice.

    Raises `ModuleNotFoundError` with the command to install the compiler, and `ValueError` for a shape that no such
    machine has.
    """
    is_gpu = bool(topology.target_config) or topology.kind in TEXTS
    _require(is_gpu)
    with client_environment():
        jax.devices("cpu")  # JAX finds its plugins once in a process, when it starts: here, or at the first compilation
    try:
        found = _gpus(topology) if is_gpu else _tpus(topology)
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"topology={str(topology)!r}: XLA's compiler knows no such machine: {error}") from error
    # In the order of `platform.all_devices`, so that programs are those of processes on that machine.
    return tuple(sorted(found.devices, key=lambda device: (device.process_index, device.id)))


def _require(is_gpu: bool) -> None:
    module, extra, kind = ("jax_cuda12_plugin", "plan-cuda12", "GPU") if is_gpu else ("libtpu", "plan-tpu", "TPU")
    newer = is_gpu and _cuda_plugin() == "xla_cuda13"
    if not newer and importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(
            f"To compile for a {kind} without one, XLA's compiler for it is needed, and {module} is not installed: "
            f"pip install 'torch_xla[{extra}]' (JAX here is {version('jax')}).",
            name=module,
        )


def _tpus(topology: Topology) -> topologies.TopologyDescription:
    options: dict[str, object] = {"num_slices": topology.slices} if topology.slices > 1 else {}
    sides = [int(side) for side in topology.name.partition(":")[2].split("x")]
    if max(sides) == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    if topology.kind == "v4":
        options["chip_config_name"] = "megacore"  # both cores of a chip as one device, as JAX has it on the machine
    with client_environment():
        return topologies.get_topology_desc(platform="tpu", topology_name=topology.name, **options)


def _gpus(topology: Topology) -> topologies.TopologyDescription:
    shape = [int(side) for side in topology.name.partition(":")[2].split("x")]
    count = functools.reduce(int.__mul__, shape)
    hosts = 1 if count <= _GPUS_PER_HOST else count // _GPUS_PER_HOST
    if hosts * min(count, _GPUS_PER_HOST) != count:
        raise ValueError(f"topology={str(topology)!r}: more than {_GPUS_PER_HOST} GPUs are whole machines of as many.")
    find = functools.partial(
        topologies.get_topology_desc,
        platform="cuda",
        topology=f"{topology.slices}x{hosts}x{count // hosts}",
        target_config=topology.target_config or TEXTS[topology.kind],
    )
    try:
        return find()
    except NotImplementedError:
        # The plugin has refused to start, because there is no CUDA. Its compiler needs none.
        with config.defaults_set({"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}):
            importlib.import_module(f"jax_plugins.{_cuda_plugin()}").initialize()
        return find()


def _cuda_plugin() -> str:
    return "xla_cuda13" if importlib.util.find_spec("jax_cuda13_plugin") is not None else "xla_cuda12"


@functools.cache
@uncollected
def memory_of(device: jax.Device) -> int | None:
    """Return the bytes that programs can use on a TPU, as its compiler counts; `None` for other devices.

    The compiler says so only where a program needs more.
    """
    if device.platform != "tpu":
        return None
    placed = jax.sharding.SingleDeviceSharding(device)
    large = jax.ShapeDtypeStruct((1 << 21, 1 << 21), "bfloat16", sharding=placed)
    try:
        jax.jit(lambda x: x + x).lower(large).compile()
    except jax.errors.JaxRuntimeError as error:
        found = re.search(r"exceeds available HBM \(([\d.]+)G\)|of ([\d.]+)G hbm", str(error))
        return int(float(found[1] or found[2]) * 2**30) if found else None
    return None
