"""Bundles of programs for a machine that is not here.

The CPU's compiler needs its devices, so virtual devices count as those of a topology here.
"""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.cache
import torch_xla.runtime as xr
from tests.support.topologies import needs_tpu_compiler
from torch_xla._engine.compile.disk import (
    bundle,
    bundle_machine,
    cache_folder,
    disk_cache,
    executable_format,
    signing_key,
)
from torch_xla._engine.compile.environment_digest import installed
from torch_xla._engine.compile.executable_key import described
from torch_xla._engine.metrics import counters
from torch_xla._engine.runtime import abstract_devices, device_assignment, platform, topologies
from torch_xla._engine.runtime.device_assignment import of_device
from torch_xla._engine.step.schedule import clear_schedules


@pytest.fixture
def topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a topology of one CPU device."""
    virtual = abstract_devices.virtual_devices(1)
    monkeypatch.setattr(topologies, "devices_of", lambda topology: virtual)
    monkeypatch.setattr(device_assignment, "is_compile_only", lambda device: device in virtual)
    monkeypatch.setattr(disk_cache, "WORTH_KEEPING_SECONDS", 0.0)
    xr.initialize_cache(str(tmp_path / "planned"))
    torch_xla.sync()  # a read would also run what an earlier test has left, in a program of its own
    clear_schedules()
    yield "v5e:1x1"
    clear_schedules()
    cache_folder.choose(None)


def counted(name: str) -> int:
    return counters.value_of(name) or 0


def test_what_was_compiled_for_a_topology_is_found_on_that_machine_alone(topology: str, tmp_path: Path) -> None:
    x = torch.arange(6.0).to("xla")
    torch_xla.sync()

    def step() -> torch.Tensor:
        return (x.sin() * 3.0).cumsum(0)

    torch_xla.debug.plan(step, steps=1, topology=topology)
    assert torch_xla.cache.statistics().executables == 0, "what runs here must not find it"
    planned = sorted((tmp_path / "planned" / "topologies").iterdir())
    misses = torch_xla.cache.misses()
    torch_xla.debug.plan(step, steps=1, topology=topology)  # it cannot be loaded here, and is no damaged file
    assert sorted((tmp_path / "planned" / "topologies").iterdir()) == planned and torch_xla.cache.misses() == misses
    assert torch_xla.cache.export(tmp_path / "programs.tar", topology) == len(planned) == 1
    xr.initialize_cache(str(tmp_path / "there"))
    assert torch_xla.cache.load(tmp_path / "programs.tar") == 1
    before = counted("StableHloCompile"), counted("PersistentCacheHit")
    assert step().tolist() == pytest.approx((torch.arange(6.0).sin() * 3).cumsum(0).tolist())
    assert (counted("StableHloCompile"), counted("PersistentCacheHit")) == (before[0], before[1] + 1)


def test_a_bundle_for_a_topology_that_was_not_planned_is_not_written(topology: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"No program in .* was compiled for 1 of 'cpu' .*debug\.plan"):
        torch_xla.cache.export(tmp_path / "programs.tar", topology)
    assert not (tmp_path / "programs.tar").exists()


def test_clear_deletes_programs_for_topologies_too(topology: str, tmp_path: Path) -> None:
    x = torch.ones(2, device="xla")
    torch_xla.debug.plan(lambda: x + 1, steps=1, topology=topology)
    assert list((tmp_path / "planned" / "topologies").iterdir())
    torch_xla.cache.clear()
    assert not list((tmp_path / "planned" / "topologies").iterdir())


def here() -> dict[str, str]:
    target = of_device(platform.local_devices()[0])
    return described(target) | installed(target).texts()


def bundle_of(place: Path, **changes: str) -> Path:
    """A bundle with one program, of an environment that differs in these parts."""
    header = executable_format.Header("a" * 32, here() | changes, 1.0, 3, "f", (), (), (), (), ())
    place.mkdir(mode=0o700)
    (place / "a.xla").write_bytes(executable_format.joined(header, b"abc", signing_key.signature))
    bundle.write(place / "programs.tar", place)
    return place / "programs.tar"


@pytest.mark.parametrize(("name", "theirs", "told"), [
    ("device", "TPU v5 lite", "device 'TPU v5 lite', and here 'cpu'"),
    ("platform", "tpu", "platform 'tpu', and here 'cpu'"),
    ("jax", "0.1", "jax '0.1', and here '0."),
    ("runtime", "libtpu 3", "compiler 'libtpu 3', and here "),
    ("devices", "256 of 64 processes", "256 devices, and here "),
    ("rules", "abc", "torch_xla's rules 'abc'"),
])  # fmt: skip
def test_another_machine_jax_or_compiler_is_refused_by_name(
    name: str, theirs: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bundle_of(tmp_path / "there", **{name: theirs})
    xr.initialize_cache(str(tmp_path / "here"))
    try:
        with pytest.raises(ValueError, match=r"programs\.tar holds no program for this process: ") as caught:
            torch_xla.cache.load(path)
        assert told in str(caught.value) and not (tmp_path / "here").exists()
        assert torch_xla.cache.load(path, elsewhere=True) == 1
        # Before a device is in use it is not known what is here; then it is told.
        monkeypatch.setattr(platform, "_started", False)
        assert torch_xla.cache.load(path) == 1
        monkeypatch.undo()
        disk_cache.foresee.cache_clear()
        with pytest.warns(UserWarning, match="holds no program for this process"):
            disk_cache.foresee(of_device(platform.local_devices()[0]))
    finally:
        cache_folder.choose(None)


def test_one_program_for_this_process_is_enough(tmp_path: Path) -> None:
    target = of_device(platform.local_devices()[0])
    others: list[dict[str, str]] = [here() | {"jax": "0.1"}, here()]
    assert bundle_machine.refused(tmp_path, others, target) == "" == bundle_machine.refused(tmp_path, [], target)
    bundle_machine.check_later(tmp_path, others)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bundle_machine.found_elsewhere(target) == []


@needs_tpu_compiler
def test_a_bundle_for_a_tpu_says_what_it_needs(tmp_path: Path) -> None:
    xr.initialize_cache(str(tmp_path / "planned"))
    try:
        x = torch.ones(8, 128, device="xla")
        torch_xla.debug.plan(lambda: x * 2 + 1, steps=1, topology="v5e:1x1")
        assert torch_xla.cache.export(tmp_path / "programs.tar", "v5e:1x1") > 0
        for needed in bundle.environments(tmp_path / "programs.tar"):
            assert (needed["platform"], needed["device"]) == ("tpu", "TPU v5 lite") and "TFRT TPU" in needed["runtime"]
            assert needed["devices"] == "1 of 1 processes" and not needed["mesh"] and not needed["options"]
        with pytest.raises(ValueError, match="device 'TPU v5 lite', and here "):
            torch_xla.cache.load(tmp_path / "programs.tar")
    finally:
        cache_folder.choose(None)


_TWO_PROCESSES = """
import sys, torch, torch_xla, torch_xla.cache, torch_xla.runtime as xr, json
import numpy as np
from torch_xla._engine.metrics import counters
from torch_xla._engine.runtime import abstract_devices, device_assignment, topologies
import torch_xla.distributed.spmd as spmd

bundle, plans = sys.argv[1], sys.argv[2] == "plan"
if plans:
    virtual = abstract_devices.virtual_devices(4)
    topologies.devices_of = lambda topology: virtual
    device_assignment.is_compile_only = lambda device: device in virtual
else:
    torch_xla.cache.load(bundle)
xr.use_spmd()

def train():
    torch.manual_seed(1)
    with torch.device("xla"):
        model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
        x = torch.ones(8, 64)
    torch_xla.sync()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    def step():
        mesh = spmd.Mesh(np.arange(4), (4,), ("data",))
        spmd.mark_sharding(x, mesh, ("data", None))
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        return loss
    losses = [step() for _ in range(3)]
    return [] if plans else [loss.item() for loss in losses]

if plans:
    torch_xla.debug.plan(train, steps=1, topology="v5e:2x2")
    torch_xla.cache.export(bundle, "v5e:2x2")
else:
    losses = train()
    print(json.dumps([losses, counters.value_of("StableHloCompile") or 0, torch_xla.cache.misses()]))
"""


@pytest.mark.slow
def test_four_devices_load_what_a_process_without_them_compiled(tmp_path: Path) -> None:
    def run(what: str) -> Any:
        env = dict(os.environ, XLA_PERSISTENT_CACHE_PATH=str(tmp_path / what), CPU_NUM_DEVICES="4")
        command = [sys.executable, "-c", _TWO_PROCESSES, str(tmp_path / "programs.tar"), what]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout else None

    run("plan")
    losses, compiles, misses = run("load")
    assert losses[0] > losses[1] > losses[2] > 0 and (compiles, misses) == (0, [])
