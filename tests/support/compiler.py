"""How XLA compiles what the tests run.

As programs of users are compiled, LLVM takes most of a test's time, and most tests ask what is computed and not how
fast. So the tests have XLA optimize less, except where they are about values: the slow tests in `OPTIMIZED`, the
exhaustive ones and the commands that sweep whole databases compile as programs of users do.
"""

import os
import platform
from pathlib import Path

import jax

from torch_xla._engine.compiler_options import Option

# Kernels hardly optimized. Several modules of LLVM for a program, which threads compile beside each other, take a fifth
# more altogether than one.
QUICK = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
# As the runtime starts XLA: tests of rules have JAX start it.
if platform.machine() == "x86_64":
    QUICK += " --xla_cpu_max_isa=AVX512"
if jax.__version_info__ < (0, 11):
    # As XLA's CPU compiler built them before its fusion emitters: a third of the time. Newer releases have no others.
    QUICK += " --xla_cpu_use_fusion_emitters=false"

# The slow tests there show that what XLA's optimizations make of an operator has PyTorch's values.
OPTIMIZED = (
    "tests/engine/compile/test_drawn_products.py", "tests/engine/compile/test_rewrite_barriers.py",
    "tests/engine/lowering/elementwise", "tests/engine/lowering/images", "tests/engine/lowering/random_numbers",
    "tests/fuzz", "tests/models", "tests/opinfo", "tests/replay_fuzz",
)  # fmt: skip
# What XLA does without the flags above.
_AS_FOR_USERS: dict[str, Option] = {"xla_backend_optimization_level": 3, "xla_cpu_parallel_codegen_split_count": 32}
if "emitters" in QUICK:
    _AS_FOR_USERS["xla_cpu_use_fusion_emitters"] = True


def options_for(test: Path) -> dict[str, Option]:
    """Return the compiler options of a slow test in this file, relative to the repository."""
    optimized = any(test.is_relative_to(room) for room in OPTIMIZED)
    return _AS_FOR_USERS if optimized and os.environ.get("XLA_FLAGS") == QUICK else {}


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
