"""The environment of compilation, which is constant within a process: versions, flags, processor."""

import functools
import hashlib
import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import jax
import torch

from .. import config
from ..runtime.device_assignment import Target
from ..runtime.platform import instructions_in_force
from . import source_digest


@dataclass(frozen=True, slots=True)
class Installation:
    """All of it, in words."""

    torch: str
    jax: str
    jaxlib: str
    rules: str  # a hash of the source that decides about lowering
    runtime: str  # the version of the device's runtime
    flags: str  # XLA_FLAGS
    tpu_flags: str  # LIBTPU_INIT_ARGS
    processor: str  # the instructions of the host's, where programs run on it
    instructions: str  # which of them XLA uses
    cores: str  # how many of them this process may use; XLA cuts loops by it when it compiles for the CPU

    def texts(self) -> dict[str, str]:
        """Return each part by the name under which a user knows it."""
        return {
            "torch": self.torch,
            "jax": self.jax,
            "jaxlib": self.jaxlib,
            "rules": self.rules,
            "runtime": self.runtime,
            "XLA_FLAGS": self.flags,
            "LIBTPU_INIT_ARGS": self.tpu_flags,
            "processor": self.processor,
            "instructions": self.instructions,
            "cores": self.cores,
        }


def read(target: Target) -> Installation:
    """Return the present environment for programs of `target`."""
    return Installation(
        torch.__version__,
        jax.__version__,
        version("jaxlib"),
        source_digest.digest(),
        str(getattr(target.device.client, "platform_version", "")),
        config.variable("XLA_FLAGS") or "",
        config.variable("LIBTPU_INIT_ARGS") or "",
        _processor() if target.is_host else "",
        instructions_in_force() if target.is_host else "",
        str(_cores()) if target.is_host else "",
    )


# XLA reads its flags once.
installed = functools.cache(read)


def _cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@functools.cache
def _processor() -> str:
    """Return the instruction set the host compiler may have used."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    chosen = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    return hashlib.sha256("\n".join(chosen).encode()).hexdigest()[:16]
