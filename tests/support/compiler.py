"""How XLA compiles what the tests run.

Most of a test's time is LLVM's, and most tests ask what is computed and not how fast. So `make test` has XLA optimize
less. `make test-slow` and the commands that sweep whole databases compile as programs of users do, except where several
processes or devices compile the same.
"""

import os

import jax

# Kernels hardly optimized. Several modules of LLVM for a program, which threads compile beside each other, take a fifth
# more altogether than one.
QUICK = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11):
    # As XLA's CPU compiler built them before its fusion emitters: a third of the time. Newer releases have no others.
    QUICK += " --xla_cpu_use_fusion_emitters=false"


def be_quick() -> None:
    """Has XLA compile quickly in this process and those it starts, unless the person who runs the tests has chosen."""
    if os.environ.get("PJRT_DEVICE", "CPU") == "CPU":
        os.environ.setdefault("XLA_FLAGS", QUICK)


def quick_flags() -> str:
    """XLA_FLAGS for a process that compiles quickly, unless the person who runs the tests has chosen."""
    return os.environ.get("XLA_FLAGS", QUICK)


def with_devices(count: int) -> str:
    """Return XLA_FLAGS for a process with `count` virtual CPU devices that compiles quickly."""
    return f"{quick_flags()} --xla_force_host_platform_device_count={count}"
