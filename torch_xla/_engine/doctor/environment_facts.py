"""Facts for the doctor: packages, hardware, settings, and the results of a probe in a process of its own."""

import importlib.metadata
import inspect
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import config

# Distributions that decide what works.
PACKAGES = (
    "torch", "jax", "jaxlib", "torch-xla", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin",
    "jax-rocm60-plugin", "libtpu", "torchvision", "torchax", "numpy", "ml-dtypes", "xprof",
)  # fmt: skip

# Files that are there if a machine has such a device and its driver.
HARDWARE = {
    "NVIDIA GPU": ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg"),
    "AMD GPU": ("/dev/kfd",),
    "TPU": ("/dev/accel0", "/dev/vfio/0"),
}

SECONDS = 120

_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything the doctor's checks know."""

    python: tuple[int, int, int]
    executable: str
    packages: dict[str, str]  # versions of those installed
    owners: tuple[str, ...]  # distributions that say `torch_xla` is theirs
    leftovers: tuple[str, ...]  # files of another torch_xla in our folder
    torch_backends: tuple[str, ...]  # packages that PyTorch loads by itself when it is imported
    jax_plugins: tuple[str, ...]
    hardware: tuple[str, ...]
    settings: dict[str, str]  # environment variables that are set
    known_settings: frozenset[str]  # variables that this package reads
    unreadable_settings: dict[str, str]  # what is wrong with their values
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)  # of the probe, in order
    probe_status: int | None = 0  # None: it did not end in time
    probe_errors: str = ""  # what it wrote to the standard error


def look(seconds: float = SECONDS) -> Surroundings:
    """Collect the facts; run the probe in a process of its own for at most `seconds`."""
    process = start_probe()
    seen = Surroundings(
        sys.version_info[:3],
        sys.executable,
        _packages(),
        tuple(sorted(set(importlib.metadata.packages_distributions().get("torch_xla", ())))),
        tuple(sorted(path.name for path in _folder().glob("_XLAC*.so"))) + tuple(_extensions_beside()),
        _entry_points("torch.backends"),
        _entry_points("jax_plugins"),
        tuple(name for name, files in HARDWARE.items() if any(Path(file).exists() for file in files)),
        config.settings(),
        known_settings(),
        _unreadable(),
    )
    stages, status, errors = end_of_probe(process, seconds)
    return replace(seen, stages=stages, probe_status=status, probe_errors=errors)


def _folder() -> Path:
    return Path(__file__).parents[3]


def _extensions_beside() -> list[str]:
    return sorted(path.name for path in _folder().parent.glob("_XLAC*.so"))


def _packages() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _entry_points(group: str) -> tuple[str, ...]:
    found = importlib.metadata.entry_points(group=group)
    return tuple(sorted({entry.dist.name if entry.dist else entry.name for entry in found}))


def known_settings() -> frozenset[str]:
    """Return the environment variables that this package reads."""
    readers = [each for _, each in inspect.getmembers(config, inspect.isfunction) if each.__module__ == config.__name__]
    texts = [constant for reader in readers for constant in reader.__code__.co_consts if isinstance(constant, str)]
    return frozenset(text for text in texts if _VARIABLE.fullmatch(text))


def _unreadable() -> dict[str, str]:
    """Return the settings whose value cannot be read, by trying all of them."""
    found: dict[str, str] = {}
    for name, reader in inspect.getmembers(config, inspect.isfunction):
        variable, _, what = (inspect.getdoc(reader) or "").partition(":")
        if name.startswith("_") or inspect.signature(reader).parameters or not what:
            continue  # it reads no setting, or looks at all of them
        try:
            reader()
        except ValueError as error:
            found[variable] = str(error)
    return found


def start_probe() -> "subprocess.Popen[str]":
    """Start the probe."""
    program = (Path(__file__).parent / "probe.py").read_text()
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end_of_probe(
    process: "subprocess.Popen[str]", seconds: float
) -> tuple[dict[str, dict[str, object]], int | None, str]:
    """Return the probe's stages, its exit status (`None`: it took longer than `seconds`) and its error output."""
    try:
        output, errors = process.communicate(timeout=seconds)
        status: int | None = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        status = None
    stages: dict[str, dict[str, Any]] = {}
    for line in output.splitlines():
        if line.startswith('{"stage"'):
            try:
                facts = json.loads(line)
            except ValueError:
                continue  # it died while it wrote
            stages[facts.pop("stage")] = facts
    return stages, status, errors
