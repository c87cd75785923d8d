"""Check what prevents the `xla` device from working here, with a remedy for each finding."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from .environment_facts import Surroundings


class Level(IntEnum):
    """How bad a finding is; the worst is the exit status of the command."""

    NOTE = 0  # worth knowing
    WARNING = 1  # works, but hardly as meant
    ERROR = 2  # does not work


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be, with its remedy."""

    level: Level
    what: str
    remedy: str


Check = Callable[[Surroundings], Iterator[Finding]]

OLDEST_PYTHON, OLDEST_TORCH, OLDEST_JAX = (3, 11), (2, 11), (0, 10)
# The first untested releases. They may lack private names that the package uses, or have another
# memory layout.
NEWER_TORCH, NEWER_JAX = (2, 16), (0, 13)
# Requirements for pip.
WANTED = {"torch": "torch>=2.11,<2.16", "jax": "jax>=0.10,<0.13"}
# The meaning of a failure in each stage of the probe.
STAGES = {
    "torch": "PyTorch could not be imported",
    "jax": "JAX could not be imported",
    "torch_xla": "torch_xla could not be imported",
    "device": "The device could not be started",
    "computation": "The device computes nothing",
}

# Settings that PyTorch/XLA 2 read, and their replacements.
REMOVED = {
    "TPU_NUM_DEVICES": "TPU_VISIBLE_CHIPS chooses the chips",
    "XLA_USE_FP16": "use torch.autocast('xla', torch.float16) or model.half()",
    "XLA_DOWNCAST_FP16": "use torch.autocast('xla', torch.float16) or model.half()",
    "PJRT_CPU_ASYNC_CLIENT": "the CPU client of JAX decides",
    "PJRT_ALLOCATOR_PREALLOCATE": "use XLA_PYTHON_CLIENT_PREALLOCATE",
    "PJRT_ALLOCATOR_FRACTION": "use XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_DISABLE_FUNCTIONALIZATION": "views are exact in both modes of PyTorch/XLA 2",
    "XLA_STABLEHLO_COMPILE": "programs always go through StableHLO",
    "CONVERT_SHLO_TO_SHARDY": "programs carry Shardy's shardings always, as JAX writes them",
    "XLA_NO_SPECIAL_SCALARS": "0 and 1 are numbers like others: one that changes becomes an argument",
    "XLA_ENABLE_PARAM_ALIASING": "an input without a reference donates its memory",
    "XLA_TENSOR_UPDATE_SYNC": "copying into a tensor is recorded",
    "XLA_USE_32BIT_LONG": "make the tensors torch.int32",
    "XLA_PARAMETER_WRAPPING_THREADSHOLD": "JAX passes the arguments",
    "XLA_RNG_BIT_GENERATOR": "the device's own generator draws",
    "XLA_IR_SHAPE_CACHE_SIZE": "shapes are found with the plans of operators",
    "XLA_DEVDATA_CACHE_SIZE": "numbers are parts of programs",
    "XLA_THREAD_POOL_SIZE": "XLA and PyTorch choose; taskset limits the cores",
    "XLA_RELEASE_GIL_DURING_TRANSFER": "transfers never hold Python back",
    "XLA_FNTRACKER_LIST": "XLA_FNTRACKER_FILE has every operator that brings a value to the host",
    "XLA_FNTRACKER_LEVEL": "XLA_FNTRACKER_FILE has every operator that brings a value to the host",
}
OURS = ("XLA_", "PT_XLA_", "PJRT_", "XRT_")
OF_JAX_AND_XLA = ("XLA_FLAGS", "XLA_PYTHON_CLIENT_", "XLA_CLIENT_", "PJRT_NAMES_AND_LIBRARY_PATHS")

# A setting that counts only beside another.
NEEDS = {
    "PT_XLA_DEBUG_FILE": ("PT_XLA_DEBUG", "PT_XLA_DEBUG_LEVEL"),
    "PT_XLA_DEBUG_MAX_FRAME": ("PT_XLA_DEBUG", "PT_XLA_DEBUG_LEVEL"),
    "XLA_SAVE_TENSORS_FMT": ("XLA_SAVE_TENSORS_FILE",),
    "XLA_DUMP_POST_OPTIMIZATIONS": ("XLA_SAVE_TENSORS_FILE",),
}
SLOW = ("XLA_SYNC_WAIT", "XLA_CHECK", "XLA_FIND_NAN", "XLA_USE_EAGER_DEBUG_MODE", "XLA_SAVE_TENSORS_FILE")
OFF = ("", "0", "false", "no", "off")


def examine(around: Surroundings) -> list[Finding]:
    """Return all that is found, the worst first."""
    found = [finding for check in CHECKS for finding in check(around)]
    return sorted(found, key=lambda finding: -finding.level)


def _versions(around: Surroundings) -> Iterator[Finding]:
    if around.python[:2] < OLDEST_PYTHON:
        yield Finding(
            Level.ERROR,
            f"Python is {_dotted(around.python)}; torch_xla needs {_dotted(OLDEST_PYTHON)} or newer.",
            "Make an environment with a newer Python.",
        )
    for name, oldest, newer in (("torch", OLDEST_TORCH, NEWER_TORCH), ("jax", OLDEST_JAX, NEWER_JAX)):
        version = around.stages.get(name, {}).get("version") or around.packages.get(name, "")
        if version and _numbers(version) < oldest:
            yield Finding(
                Level.ERROR,
                f"{name} is {version}; torch_xla needs {_dotted(oldest)} or newer.",
                f"pip install -U '{WANTED[name]}'",
            )
        elif version and _numbers(version)[:2] >= newer:
            yield Finding(
                Level.ERROR,
                f"{name} is {version}; torch_xla needs one before {_dotted(newer)}.",
                f"pip install '{WANTED[name]}'",
            )
    jax, jaxlib = around.packages.get("jax"), around.packages.get("jaxlib")
    if jax and jaxlib and _numbers(jax)[:2] != _numbers(jaxlib)[:2]:
        yield Finding(
            Level.ERROR,
            f"jax is {jax} and jaxlib {jaxlib}: one is not made for the other.",
            f"pip install -U 'jax=={jax}' 'jaxlib=={jax}'",
        )
    for name, version in around.packages.items():
        if (
            re.fullmatch(r"jax-(cuda|rocm)\d+-plugin", name)
            and jaxlib
            and _numbers(version)[:2] != _numbers(jaxlib)[:2]
        ):
            extra = name.removeprefix("jax-").removesuffix("-plugin")
            yield Finding(
                Level.WARNING,
                f"{name} is {version} and jaxlib {jaxlib}: JAX leaves out a plugin that is not made for it.",
                f"pip install -U 'jax[{extra}]'",
            )


def _backends(around: Surroundings) -> Iterator[Finding]:
    name = around.stages.get("torch", {}).get("privateuse1", "privateuseone")
    if name not in ("privateuseone", "xla"):
        taker = ", ".join(around.torch_backends) or "a package that PyTorch loads"
        yield Finding(
            Level.ERROR,
            f"PyTorch has one place for a backend in another package (PrivateUse1), and {name!r} has taken it: "
            f"{taker} does so when torch is imported.",
            "Uninstall that package, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 and do not import it.",
        )
    elif around.torch_backends:
        yield Finding(
            Level.NOTE,
            f"PyTorch loads {', '.join(around.torch_backends)} when it is imported. If that claims PrivateUse1, the "
            f"xla device cannot.",
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps PyTorch from loading it.",
        )
    others = tuple(owner for owner in around.owners if _normal(owner) != "torch-xla")
    if others:
        yield Finding(
            Level.ERROR,
            f"{', '.join(others)} installs a package `torch_xla` too: which one is imported is a matter of luck.",
            f"pip uninstall {' '.join(others)} torch_xla, then install torch_xla again.",
        )
    if around.leftovers:
        yield Finding(
            Level.WARNING,
            f"{', '.join(around.leftovers)} is a part of PyTorch/XLA 2 that its uninstallation left.",
            "Delete that file.",
        )


def _failures(around: Surroundings) -> Iterator[Finding]:
    """Yield the stage at which the probe came to its end before it was done."""
    for stage, facts in around.stages.items():
        if facts["state"] == "ended":
            if facts.get("right") is False:
                yield Finding(
                    Level.ERROR, "The device gives a wrong product of two matrices.", "Report it, with this page."
                )
            continue
        what = STAGES[stage]
        if facts["state"] == "failed":
            yield Finding(Level.ERROR, f"{what}: {facts['error']}", _remedy(around, stage, facts))
        elif around.probe_status is None:
            yield Finding(
                Level.ERROR,
                f"{what}: it took too long and was ended.",
                "Another process may hold the device: end it. Else run the doctor again with a larger --seconds.",
            )
        else:
            yield Finding(
                Level.ERROR,
                f"{what}: the process died with status {around.probe_status}. {_last_lines(around.probe_errors)}",
                "XLA ends the process for an option in XLA_FLAGS that it does not know: correct or unset it."
                if "XLA_FLAGS" in around.probe_errors
                else "The lines above are its last; the driver or a plugin may not fit the machine.",
            )
    if not around.stages:
        yield Finding(
            Level.ERROR, f"Python did not start. {_last_lines(around.probe_errors)}", "Repair the environment."
        )


def _remedy(around: Surroundings, stage: str, facts: Mapping[str, object]) -> str:
    if stage in ("torch", "jax"):
        again = "" if facts.get("missing") else "--force-reinstall "
        return f"pip install {again}'{WANTED[stage]}'"
    wanted = around.settings.get("PJRT_DEVICE")
    allowed = around.settings.get("JAX_PLATFORMS")
    if stage == "device" and wanted and allowed and wanted.lower() not in allowed.lower():
        return f"PJRT_DEVICE={wanted} asks for what JAX_PLATFORMS={allowed} excludes: unset one of them."
    if stage == "device" and wanted:
        there = ", ".join(around.jax_plugins) or "none"
        return (
            f"Unset PJRT_DEVICE, or install what gives JAX that platform: pip install 'torch_xla[cuda12]', '[cuda13]' "
            f"or '[tpu]'. Plugins of JAX installed here: {there}."
        )
    return "See the other findings; else report it, with this page."


def _accelerators(around: Surroundings) -> Iterator[Finding]:
    started = around.stages.get("device", {}).get("type")
    plugins = [name for name in around.packages if re.fullmatch(r"jax-cuda\d+-plugin", name)]
    cuda_of_torch = around.stages.get("torch", {}).get("cuda")
    chosen = {"PJRT_DEVICE", "JAX_PLATFORMS"} & around.settings.keys()
    has_gpu = "NVIDIA GPU" in around.hardware
    if has_gpu and not plugins:
        also = f" PyTorch is built for CUDA {cuda_of_torch}, JAX is not." if cuda_of_torch else ""
        extra = "cuda12" if (cuda_of_torch or "").startswith("12") else "cuda13"
        yield Finding(
            Level.WARNING,
            f"There is an NVIDIA GPU, and JAX has no CUDA plugin: the xla device is the CPU.{also}",
            f"pip install 'torch_xla[{extra}]'",
        )
    elif cuda_of_torch and not plugins:
        yield Finding(
            Level.NOTE,
            f"PyTorch is built for CUDA {cuda_of_torch} and JAX has no CUDA plugin: on a machine with a GPU the xla "
            f"device would be its CPU.",
            "pip install 'torch_xla[cuda12]' or 'torch_xla[cuda13]' where there is a GPU.",
        )
    if has_gpu and plugins and started == "CPU" and not chosen:
        yield Finding(
            Level.WARNING,
            f"There are an NVIDIA GPU and {plugins[0]}, and yet the device is the CPU. "
            f"{_last_lines(around.probe_errors)}",
            "The driver may be too old for the plugin: `nvidia-smi` tells its CUDA version.",
        )
    if len(plugins) > 1:
        yield Finding(
            Level.WARNING,
            f"{' and '.join(plugins)} are both installed: JAX uses one of them.",
            f"pip uninstall {plugins[0]} or {plugins[1]}",
        )
    if has_gpu and started == "CUDA" and cuda_of_torch and "XLA_PYTHON_CLIENT_PREALLOCATE" not in around.settings:
        yield Finding(
            Level.NOTE,
            "JAX reserves three quarters of the GPU's memory when it starts: little is left for tensors on `cuda`.",
            "Set XLA_PYTHON_CLIENT_PREALLOCATE=false if one program uses both devices.",
        )
    if "TPU" in around.hardware and "libtpu" not in around.packages:
        yield Finding(Level.WARNING, "There is a TPU, and libtpu is not installed.", "pip install 'torch_xla[tpu]'")


def _settings(around: Surroundings) -> Iterator[Finding]:
    for name, error in around.unreadable_settings.items():
        value = around.settings.get(name, "")
        yield Finding(Level.ERROR, f"{name}={value} cannot be read: {error}", "Correct or unset it.")
    for name in around.settings:
        if name in REMOVED:
            yield Finding(Level.WARNING, f"{name} does nothing: PyTorch/XLA 2 read it.", f"Unset it: {REMOVED[name]}.")
        elif name.startswith("XRT_"):
            yield Finding(
                Level.WARNING, f"{name} does nothing: XRT is gone.", "Unset it; PJRT_DEVICE chooses the platform."
            )
        elif name.startswith(OURS) and name not in around.known_settings and not name.startswith(OF_JAX_AND_XLA):
            close = difflib.get_close_matches(name, sorted(around.known_settings), 1, 0.8)
            meant = f"Did you mean {close[0]}?" if close else "Unset it; docs/environment.md lists all."
            yield Finding(Level.WARNING, f"{name} does nothing here.", meant)
    for name, others in NEEDS.items():
        if name in around.settings and not any(_is_on(around, other) for other in others):
            yield Finding(Level.WARNING, f"{name} does nothing without {' or '.join(others)}.", f"Set {others[0]} too.")
    yield from _cpu_devices(around)
    slow = [name for name in SLOW if _is_on(around, name)]
    if slow:
        yield Finding(Level.NOTE, f"{', '.join(slow)}: each makes every step slower.", "Unset it when you are done.")
    for name in ("XLA_USE_BF16", "XLA_DOWNCAST_BF16"):
        if _is_on(around, name):
            yield Finding(
                Level.NOTE,
                f"{name}: tensors that say float32 hold bfloat16, three significant digits.",
                "model.to(torch.bfloat16) or torch.autocast('xla') says so in the program.",
            )


def _cpu_devices(around: Surroundings) -> Iterator[Finding]:
    count = around.settings.get("CPU_NUM_DEVICES")
    if count is None:
        return
    platform = around.settings.get("PJRT_DEVICE") or around.stages.get("device", {}).get("type", "CPU")
    if platform.upper() != "CPU":
        yield Finding(
            Level.WARNING, f"CPU_NUM_DEVICES does nothing: the platform is {platform}.", "Unset it, or PJRT_DEVICE=CPU."
        )
    flags = re.findall(r"--xla_force_host_platform_device_count=(\d+)", around.settings.get("XLA_FLAGS", ""))
    if flags and flags[-1] != count:
        yield Finding(
            Level.WARNING,
            f"CPU_NUM_DEVICES asks for {count} devices and XLA_FLAGS for {flags[-1]}.",
            "Keep one of the two.",
        )


def _is_on(around: Surroundings, name: str) -> bool:
    return around.settings.get(name, "").strip().lower() not in OFF


CHECKS: tuple[Check, ...] = (_versions, _backends, _failures, _accelerators, _settings)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _last_lines(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return " | ".join(lines[-3:])
