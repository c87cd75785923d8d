"""The platform and its devices. Nothing starts until a device is needed."""

import functools
import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager

import jax

from .. import config
from ..atomic import lock, uncollected
from ..processes import coordination, identity, spmd_mode
from .cpu_instructions import instructions_in_force as instructions_in_force
from .first_client import client_environment
from .host_malloc import prepare as prepare_malloc
from .pjrt_plugins import is_known as is_known_plugin
from .pjrt_plugins import register_installed as register_installed_plugins
from .tpu_chips import is_usable as is_tpu_usable
from .tpu_chips import share_of as tpu_share_of

# Documented names of platforms → JAX's names.
_JAX_NAMES = {"CPU": "cpu", "CUDA": "cuda", "GPU": "gpu", "ROCM": "rocm", "TPU": "tpu"}
_OUR_NAMES = {"cpu": "CPU", "gpu": "CUDA", "cuda": "CUDA", "rocm": "ROCM", "tpu": "TPU"}

_lock = lock()
_started = False
forked = False  # from a process whose client ran: its threads, without which nothing works, are not here


def _after_fork() -> None:
    global forked
    if _started:
        forked = True
        _devices_of_client.cache_clear()
        _counterparts.cache_clear()
        _devices_of_program.cache_clear()


def is_forked() -> bool:
    """Return whether this process is a fork of one that used a device."""
    return forked


def refuse_fork() -> None:
    """Raise in a forked process, which would wait for ever for threads of its parent."""
    if forked:
        raise RuntimeError(
            "The xla device was in use in the process that this one was forked from, and a fork cannot use it. Start "
            "processes with `torch.multiprocessing.set_start_method('spawn')`, or fork before the first use."
        )


# Devices that programs are compiled for, instead of those of this process, while a step is planned; and, if each is of
# a process, the place of this one's. The same tape has other programs there.
elsewhere: tuple[tuple[jax.Device, ...], int | None] | None = None


def local_devices() -> tuple[jax.Device, ...]:
    """Return the devices this process can address, in the order of their ordinals. Starts the client."""
    if elsewhere is None:
        return _devices_of_client()
    devices, own = elsewhere
    return devices if own is None else devices[own : own + 1]


@contextmanager
def standing_in(devices: tuple[jax.Device, ...] | None, own: int | None = None) -> Iterator[None]:
    """Make these the devices of this process within a `with` block; `None`: its own.

    With `own` each of them is of one process, and this one has that at the place `own`.
    """
    global elsewhere
    before = elsewhere
    try:
        elsewhere = None if devices is None else (devices, own)
        yield
    finally:
        elsewhere = before


@functools.cache
@uncollected  # a finalizer that reads would have JAX start in the middle of its start
def _devices_of_client() -> tuple[jax.Device, ...]:
    global _started
    refuse_fork()
    with _lock:
        wanted = config.pjrt_device()
        joined = identity.process_count() > 1
        shares = identity.local_process_count() > 1 and wanted not in ("", "CPU")
        if joined:
            coordination.connect()
        if joined and (shares or not spmd_mode.is_on()):
            _take_one_device(wanted)
        if wanted and wanted not in _JAX_NAMES and not is_known_plugin(wanted):
            register_installed_plugins()
        count = config.cpu_num_devices()
        if (not joined or spmd_mode.is_on()) and count > 1 and not _started and wanted in ("", "CPU"):
            # The user asked for virtual devices by name; JAX takes the number only before its CPU client starts.
            jax.config.update("jax_num_cpu_devices", count)
        if joined:
            coordination.all_come("start the xla device")
        try:
            with client_environment():
                devices = jax.local_devices(backend=_JAX_NAMES.get(wanted, wanted.lower()) if wanted else None)
        except RuntimeError as error:
            if not wanted:
                raise RuntimeError(
                    f"JAX could not start a device ({error}). `python -m torch_xla.doctor` explains more; with "
                    f"PJRT_DEVICE=CPU the device is the CPU."
                ) from error
            raise RuntimeError(
                f"PJRT_DEVICE={wanted}: JAX has no such platform here ({error}). Install the plugin "
                f"(`pip install 'torch_xla[cuda12]'`, `[cuda13]` or `[tpu]`) or unset PJRT_DEVICE."
            ) from error
        _started = True
        return tuple(devices)


def _take_one_device(wanted: str) -> None:
    """Take one of the machine's devices, the one with this process's number.

    Where a process sees one GPU alone, its launcher has chosen it, as SLURM does with `--gpus-per-task`.
    """
    jax.config.update("jax_num_cpu_devices", 1)
    if wanted in ("", "TPU") and is_tpu_usable():
        if not config.tpu_processes_are_arranged():
            config.set_libtpu_variables(tpu_share_of(identity.place()))
        return
    place, visible = identity.place(), config.visible_gpus()
    number = 0 if visible is not None and len(visible) == 1 else place.local_index
    there = max(1, gpu_count())  # Linux on Windows has no device files
    if wanted in ("CUDA", "GPU") and number >= there:
        raise RuntimeError(
            f"This is process {number} of {place.local_count} on this machine, each of which needs a GPU, and it "
            f"shows {there}. Start as many processes as there are GPUs (torchrun --nproc-per-node {there}), or let "
            f"CUDA_VISIBLE_DEVICES show more."
        )
    own = str(number)
    jax.config.update("jax_cuda_visible_devices", own)
    jax.config.update("jax_rocm_visible_devices", own)


def all_devices() -> tuple[jax.Device, ...]:
    """Return the devices of all processes of the program, process by process. Starts the client."""
    return _devices_of_program() if elsewhere is None else elsewhere[0]


@functools.cache
def _devices_of_program() -> tuple[jax.Device, ...]:
    local = local_devices()
    if identity.process_count() == 1:
        return local
    return tuple(sorted(jax.devices(local[0].platform), key=lambda device: (device.process_index, device.id)))


def counterparts(index: int) -> tuple[jax.Device, ...]:
    """Return the device with this ordinal of each process, in the order of the processes."""
    return _counterparts(index) if elsewhere is None else elsewhere[0]


@functools.cache
def _counterparts(index: int) -> tuple[jax.Device, ...]:
    platform = local_devices()[index].platform
    of_process: dict[int, list[jax.Device]] = {}
    for device in jax.devices(platform):
        of_process.setdefault(device.process_index, []).append(device)
    return tuple(of_process[process][index] for process in sorted(of_process))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def expected_device_count() -> int:
    """Return the expected number of devices, from settings and device files, without starting the client."""
    if identity.process_count() > 1 or spmd_mode.is_on():
        return 1
    chosen = int(getattr(jax.config, "jax_num_cpu_devices", 0) or 0)
    return max(1, config.cpu_num_devices(), config.forced_host_devices(), chosen, _accelerator_files())


@functools.cache
def prepare_host() -> None:
    """Prepare the host before the client starts its threads, if the host is probably the device. Starts no thread."""
    if _is_host_likely():
        prepare_malloc()


def _is_host_likely() -> bool:
    wanted = config.pjrt_device()
    return wanted == "CPU" or (not wanted and not _accelerator_files())


def gpu_count() -> int:
    """Return the number of visible NVIDIA GPUs of this machine, from device files; do not start the client."""
    visible = config.visible_gpus()
    return len(glob.glob("/dev/nvidia[0-9]*")) if visible is None else len(visible)


def _accelerator_files() -> int:
    return gpu_count() + sum(len(glob.glob(pattern)) for pattern in ("/dev/accel*", "/dev/vfio/[0-9]*"))


def is_started() -> bool:
    """Return whether a client runs."""
    return _started


def device_type() -> str:
    """Return the platform, such as "CPU", "CUDA" or "TPU". Starts the client only if PJRT_DEVICE is not set."""
    wanted = config.pjrt_device()
    if wanted:
        return "CUDA" if wanted == "GPU" else wanted.split("_")[0]
    platform = local_devices()[0].platform
    return _OUR_NAMES.get(platform, platform.upper())


def real_name(device: jax.Device) -> str:
    """Return the device as the documents write it, such as "CPU:0"."""
    return f"{_OUR_NAMES.get(device.platform, device.platform.upper())}:{ordinal_of(device)}"


def ordinal_of(device: jax.Device) -> int:
    """Return its number among the devices of the program. JAX counts the CPU's in steps from process to process."""
    if spmd_mode.is_on():
        return all_devices().index(device)
    return device.process_index if identity.process_count() > 1 else int(device.id)


def export_platform() -> str:
    """Return the platform of the first device as `jax.export` calls it. Starts the client."""
    name = local_devices()[0].platform
    return "cuda" if name == "gpu" else name
