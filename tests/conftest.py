"""Every test starts with clean settings, fresh counters and the same random numbers."""

import gc
import itertools
import os
import random
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jax
import numpy as np
import pytest
import torch

from tests.support import compiler, failures, limits, signals, workers
from torch_xla._engine import compiler_options, imported_objects, precision
from torch_xla._engine.compat.names.torch import product_precision
from torch_xla._engine.compile import program_cache
from torch_xla._engine.compile.disk import cache_folder
from torch_xla._engine.diagnostics.report import history
from torch_xla._engine.metrics import counters, samples
from torch_xla._engine.planning import mesh_in_use
from torch_xla._engine.processes import spmd_mode
from torch_xla._engine.step.sync import sync_device
from torch_xla._engine.tensor.device import existing_devices
from torch_xla.experimental import eager_mode, is_eager_mode

# The platform is the choice of the person who runs the tests; XLA_FLAGS counts only before the first device exists.
KEPT = {"PJRT_DEVICE", "XLA_FLAGS"}

# Fixtures of a whole module run before those of a test.
os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failures", metavar="FILE", help="write the tests that failed and why to FILE, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    failures.configure(config)
    limits.limit_subprocesses()
    signals.heed_interrupts()
    if config.option.markexpr != "exhaustive":
        compiler.be_quick()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> workers.Shared | None:
    return workers.Shared(config, log) if config.option.dist == "loadfile" else None


@pytest.fixture(scope="session")
def cache_key(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A key for executables on disk that is none of the user's."""
    return str(tmp_path_factory.mktemp("key") / "cache.key")


# A test that passes here passes elsewhere too, however slowly inputs are drawn; `python -m tests.fuzz` draws new
# inputs.
hypothesis.settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("same")


# The test that begins last runs alone at the end; this one takes minutes.
LONGEST = "tests/examples/test_several_devices.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
    nameless = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if nameless:
        raise pytest.UsageError(f"each process gives these tests other names; give `parametrize` ids: {nameless}")


def stays() -> None:
    """Leaves what is alive to the end: a collection of garbage that looks through it takes a quarter of a second."""
    gc.collect()
    imported_objects.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collection: searching the imported modules takes a third of each start."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    stays()  # all that was imported


_modules = itertools.count(1)


@pytest.fixture(scope="module", autouse=True)
def earlier_modules() -> None:
    begin_step()  # fixtures of a module come before those of its first test
    if _memory_mappings() > MOST_MAPPINGS:
        program_cache.clear()
        for forget in program_cache.when_scarce:
            forget()
        jax.clear_caches()
        stays()
    elif next(_modules) % 20 == 0:
        stays()  # what JAX and we remember of their programs


@pytest.fixture(scope="module")
def few_objects() -> None:
    """For modules that collect garbage in each test: a second and a half of each, where many tests ran before."""
    stays()


# Of the 65,530 that Linux allows. Half of them in use, the engine forgets programs and warns of it.
MOST_MAPPINGS = 20_000


def _memory_mappings() -> int:
    table = Path("/proc/self/maps")
    return table.read_bytes().count(b"\n") if table.exists() else 0


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    # The same as `torch.manual_seed`, without the stack that it keeps for a missing CUDA.
    torch.default_generator.manual_seed(0)
    torch.xla.manual_seed_all(0)
    random.seed(0)
    np.random.seed(0)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, cache_key: str) -> None:
    for name in list(os.environ):
        if name.startswith(("XLA_", "PT_XLA_", "PJRT_")) and name not in KEPT:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", "")  # what an earlier run compiled must not decide what a test sees
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_KEY", cache_key)
    cache_folder.choose(None)


@pytest.fixture(autouse=True)
def compiled_as_for_users(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have slow tests of values compile with XLA's optimizations (`tests/support/compiler.py`)."""
    slow = request.node.get_closest_marker("slow") is not None
    options = compiler.options_for(request.path.relative_to(request.config.rootpath)) if slow else {}
    undo = compiler_options.choose({**compiler_options.chosen(), **options})
    yield
    undo()


@pytest.fixture(autouse=True)
def spmd_is_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs cannot turn it off; with the one device that tests have it changes nothing else. No mesh is default."""
    monkeypatch.setattr(spmd_mode, "_asked", False)
    monkeypatch.setattr(mesh_in_use, "_default", None)
    monkeypatch.setenv("XLA_USE_SPMD", "")  # so that what a test sets is taken back
    monkeypatch.delenv("XLA_USE_SPMD")


@pytest.fixture(autouse=True)
def no_precision_is_chosen() -> Iterator[None]:
    """Start each test as a new process, which has chosen no precision of float32 products, here or in PyTorch."""
    _forget_precisions()
    yield
    _forget_precisions()


def _forget_precisions() -> None:
    precision.forget()
    # A block that restores PyTorch's precision sets it, and what is set counts as chosen.
    if product_precision(*precision.OF_TORCH) != "none":
        torch._C._set_float32_matmul_precision("highest")
        for backend in ("cuda", "mkldnn"):
            torch._C._set_fp32_precision_setter(backend, "matmul", "none")


@pytest.fixture(autouse=True)
def recorded() -> Iterator[None]:
    """Fail a test that leaves a mode on, instead of the tests after it."""
    yield
    left_on = is_eager_mode()
    eager_mode(False)
    assert not left_on, "the test leaves eager mode on"
    assert torch._C._is_torch_function_enabled(), "the test leaves calls of PyTorch to subclasses of tensors off"


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    """As with eager mode; a thread that still compiles or waits has a minute to end."""
    yield
    deadline = time.monotonic() + 60
    while not gc.isenabled() and time.monotonic() < deadline:
        time.sleep(0.01)
    left_off = not gc.isenabled()
    gc.enable()
    assert not left_off, "the test leaves the collection of garbage off"


@pytest.fixture(autouse=True)
def fresh_step() -> None:
    begin_step()


def begin_step() -> None:
    """End the step of an earlier test: a read also runs the little that it has left, which makes another program."""
    for device in existing_devices():
        try:
            sync_device(device)
        except Exception:  # whatever that test wanted to see fail
            device.tape = device.new_tape()


@pytest.fixture(autouse=True)
def fresh_metrics() -> Iterator[None]:
    counters.clear()
    samples.clear()
    history.keep(True)  # as in a new process, whatever an earlier test did to it
    yield
    assert not counters.value_of("ListenerFailed"), "an explanation failed; the log of torch_xla.events says how"
