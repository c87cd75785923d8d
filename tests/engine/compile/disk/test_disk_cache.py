"""Executables on disk, as later processes and damaged files meet them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import torch_xla
import torch_xla.cache
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr
from torch_xla._engine.compile import environment_digest, executable_key
from torch_xla._engine.compile.disk import cache_folder, disk_cache, executable_format, folder_limit
from torch_xla._engine.metrics import counters
from torch_xla._engine.step.schedule import clear_schedules
from torch_xla._engine.tensor.device import device_at


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder that keeps even what compiles at once."""
    monkeypatch.setattr(disk_cache, "WORTH_KEEPING_SECONDS", 0.0)
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", str(tmp_path / "cache"))
    torch_xla.sync()  # a read would also run what an earlier test has left, in a program of its own
    clear_schedules()
    yield tmp_path / "cache"
    clear_schedules()


def result(scale: float = 3.0, size: int = 4) -> list[float]:
    """A step as another process would see it for the first time."""
    clear_schedules()
    x = torch.arange(float(size)).to("xla")
    return (x.sin() * scale + x.cumsum(0)).tolist()


def counted(name: str) -> int:
    return counters.value_of(name) or 0


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{cache_folder.SUFFIX}"))


def test_a_program_is_compiled_once_and_then_found(folder: Path) -> None:
    first = result()
    assert (counted("StableHloCompile"), counted("PersistentCacheHit")) == (1, 0)
    assert result() == first
    assert (counted("StableHloCompile"), counted("PersistentCacheHit")) == (1, 1)
    assert len(files(folder)) == 1


def test_what_was_found_counts_as_what_was_compiled(folder: Path) -> None:
    seen = []
    for _ in range(2):
        met.clear_all()
        result()
        data = met.metric_data("CompileTime")
        assert data is not None and 0 < data[1] == data[2][0][1]
        seen.append((data[0], met.counter_value("UncachedCompile"), met.counter_value("CreateCompileHandles")))
    assert seen == [(1, 1, 1)] * 2
    assert met.counter_value("StableHloCompile") is None and met.counter_value("PersistentCacheHit") == 1


@pytest.mark.slow
def test_another_process_finds_it(folder: Path) -> None:
    program = """
import torch, torch_xla
from torch_xla._engine.compile.disk import disk_cache
from torch_xla._engine.metrics import counters
disk_cache.WORTH_KEEPING_SECONDS = 0.0
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)).to("xla")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
torch_xla.manual_seed(0)
for step in range(4):
    loss = model(torch.ones(2, 4).to("xla")).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
print(loss.item(), counters.value_of("StableHloCompile") or 0, counters.value_of("PersistentCacheHit") or 0)
"""
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], env=dict(os.environ), capture_output=True, text=True, check=True
        )
        for _ in range(2)
    ]
    (loss, compiled, hits), (loss_again, compiled_again, hits_again) = (run.stdout.split() for run in runs)
    assert loss == loss_again
    assert compiled == "1" and hits == "0"
    assert compiled_again == "0" and hits_again == compiled


def test_numbers_that_are_baked_in_tell_programs_apart(folder: Path) -> None:
    assert result(2.0) != result(3.0)
    assert result(2.0) != result(4.0)
    x = torch.arange(12.0).to("xla")
    for _ in range(2):
        clear_schedules()
        assert torch.diff(x, n=2).tolist() == [0.0] * 10
        assert x.narrow(0, 3, 4).tolist() == [3, 4, 5, 6]
        assert torch.full((2,), 7.0, device="xla").tolist() == [7, 7]


def test_a_damaged_file_is_told_and_compiled_again(folder: Path) -> None:
    expected = result()
    (path,) = files(folder)
    sound = path.read_bytes()
    for damaged in (
        b"",
        sound[:100],
        sound[: len(sound) // 2],
        b"x" + sound[1:],
        sound[:-3] + b"abc",
        sound.replace(b'"weak": []', b'"weak": [0]'),
    ):
        path.write_bytes(damaged)
        with pytest.raises(executable_format.Unreadable):
            executable_format.split(damaged)
        assert result() == expected
        assert "was damaged" in torch_xla.cache.misses()[-1]
        executable_format.split(path.read_bytes())


def test_a_miss_tells_what_is_different(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result()
    assert "never compiled here" in torch_xla.cache.misses()[-1]
    older = replace(environment_digest.read(device_at(0).target), jax="0.9.0")
    monkeypatch.setattr(executable_key, "installed", lambda target: older)
    result()
    assert "another environment: jax " in torch_xla.cache.misses()[-1]
    assert torch_xla.cache.misses()[-1].endswith("→ '0.9.0'")
    assert len(files(folder)) == 2


def test_a_large_folder_is_not_listed_for_each_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_limit, "_LOOKS_EVERY", 1 << 30)  # at the size of the folder
    listed: list[object] = []
    listing = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: (listed.append(path), listing(path))[1])
    for size in range(2, 5):
        result(size=size)
    listed.clear()
    for size in range(5, 8):
        result(size=size)
    assert "never compiled here" in torch_xla.cache.misses()[-1] and not listed
    (folder / "of-another.xla").write_bytes(b"")
    for size in range(8, 10):
        result(size=size)
    assert len(listed) == 1


def test_a_folder_that_may_only_be_read_gets_nothing(folder: Path) -> None:
    xr.initialize_cache(str(folder), readonly=True)
    result()
    assert not folder.exists()
    xr.initialize_cache(str(folder))
    result()
    assert len(files(folder)) == 1
    xr.initialize_cache(str(folder), readonly=True)
    result()
    result(size=5)
    assert len(files(folder)) == 1 and counted("PersistentCacheHit") == 1


def test_a_folder_that_cannot_be_made_costs_a_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write_text("a file")
    cache_folder._warned.clear()
    with pytest.warns(UserWarning, match="cannot be kept in"):
        first = result()
    assert result() == first


def test_no_path_keeps_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", "")
    result()
    assert not folder.exists() and counted("PersistentCacheMiss") == 0
    with pytest.raises(RuntimeError, match="XLA_PERSISTENT_CACHE_PATH is empty"):
        torch_xla.cache.export("nowhere.tar")


def test_a_bundle_carries_programs_elsewhere(folder: Path, tmp_path: Path) -> None:
    result()
    result(size=9)
    assert torch_xla.cache.export(tmp_path / "programs.tar") == 2
    xr.initialize_cache(str(tmp_path / "elsewhere"))
    assert torch_xla.cache.load(tmp_path / "programs.tar") == 2
    before = counted("StableHloCompile")
    result()
    assert counted("StableHloCompile") == before
    assert torch_xla.cache.statistics().executables == 2
    torch_xla.cache.clear()
    assert torch_xla.cache.statistics().executables == 0


def test_a_damaged_bundle_is_refused(folder: Path, tmp_path: Path) -> None:
    result()
    (path,) = files(folder)
    path.write_bytes(path.read_bytes()[:-5])
    torch_xla.cache.export(tmp_path / "programs.tar")
    xr.initialize_cache(str(tmp_path / "elsewhere"))
    with pytest.raises(ValueError, match="1 of the files in .* are damaged"):
        torch_xla.cache.load(tmp_path / "programs.tar")


@pytest.mark.slow
def test_the_command_tells_what_is_there(folder: Path, tmp_path: Path) -> None:
    result()
    command = [sys.executable, "-m", "torch_xla.cache"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ)).stdout
    assert f"{folder}: 1 executables" in told
    subprocess.run([*command, "clear"], check=True, env=dict(os.environ), capture_output=True)
    assert files(folder) == []


def test_who_asks_for_lines_gets_those_of_today(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result()
    monkeypatch.setenv("XLA_HLO_DEBUG", "1")
    result()
    assert (counted("StableHloCompile"), counted("PersistentCacheHit")) == (2, 0)


@pytest.mark.slow
def test_what_one_device_kept_runs_on_another(folder: Path) -> None:
    program = """
import torch, torch_xla
from torch_xla._engine.compile.disk import disk_cache
from torch_xla._engine.metrics import counters
disk_cache.WORTH_KEEPING_SECONDS = 0.0
for index in range(2):
    print((torch.ones(3).to(f"xla:{index}") * 2).tolist())
print(counters.value_of("StableHloCompile") or 0, counters.value_of("PersistentCacheHit") or 0)
"""
    two = {**os.environ, "CPU_NUM_DEVICES": "2", "PJRT_DEVICE": "CPU"}
    told = subprocess.run([sys.executable, "-c", program], env=two, capture_output=True, text=True)
    assert told.stdout.splitlines() == ["[2.0, 2.0, 2.0]"] * 2 + ["1 1"], told.stderr


@pytest.mark.slow
def test_linear_algebra_from_disk_finds_its_library(folder: Path) -> None:
    program = """
import torch, torch_xla
from torch_xla._engine.compile.disk import disk_cache
from torch_xla._engine.metrics import counters
disk_cache.WORTH_KEEPING_SECONDS = 0.0
print(torch.linalg.svdvals(2 * torch.eye(3).to("xla")).cpu().tolist(), counters.value_of("StableHloCompile") or 0)
"""
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], env=dict(os.environ), capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert runs == ["[2.0, 2.0, 2.0] 1\n", "[2.0, 2.0, 2.0] 0\n"]


_LARGE_CONSTANT = """
import sys
import jax.numpy as jnp
import torch, torch_xla.interop
from torch_xla._engine.compile.disk import disk_cache
from torch_xla._engine.interop import jax_functions
disk_cache.WORTH_KEEPING_SECONDS = 0.0
jax_functions._MOST_CONSTANTS = 8
constant = jnp.full(4, float(sys.argv[1]))
def scaled(x):
    return x * constant
print(torch_xla.interop.call_jax(scaled, torch.ones(4, device="xla")).tolist())
"""


@pytest.mark.slow
def test_functions_with_large_constants_are_not_taken_for_each_other(folder: Path) -> None:
    for scale in (2.0, 3.0):
        command = [sys.executable, "-c", _LARGE_CONSTANT, str(scale)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str([scale] * 4)
    assert not files(folder)


STARTED_TOGETHER = """
import os, sys, torch, torch_xla
from torch_xla._engine.compile.disk import disk_cache
from torch_xla._engine.metrics import counters
disk_cache.WORTH_KEEPING_SECONDS = 0.0
begin, end = os.pipe()
count = int(sys.argv[1])
for _ in range(count):
    if os.fork() == 0:  # before a device is used: importing is what would take long
        break
else:
    os.close(begin), os.close(end)
    sys.exit(any([os.wait()[1] for _ in range(count)]))
os.close(end)
x = torch.arange(6.0).to("xla")
os.read(begin, 1)  # until all processes have closed the other end
for scale in (2.0, 3.0):
    y = (x.sin() * scale + x.cumsum(0)).tolist()
    z = torch.diff(x * scale, n=2).softmax(0).tolist()
values = [y, z, x.std().item()]
counted = [counters.value_of(name) or 0 for name in ("StableHloCompile", "PersistentCacheHit")]
os.write(1, f"{counted[0]} {counted[1]} {values}\\n".encode())
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the processes are forked")
def test_of_processes_started_together_one_compiles_each_program(folder: Path) -> None:
    count = 16
    arguments = [sys.executable, "-W", "ignore", "-c", STARTED_TOGETHER, str(count)]
    lines = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True, timeout=400).stdout.splitlines()
    assert len(lines) == count
    found = [line.split(maxsplit=2) for line in lines]
    assert len({values for _, _, values in found}) == 1
    compiled, hits = (sum(int(each[place]) for each in found) for place in (0, 1))
    assert compiled == len(files(folder)) > 2
    assert compiled + hits == count * len(files(folder))
    assert not list((folder / "compiling").iterdir())


def test_a_program_that_another_process_writes_meanwhile_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = result()
    (file,) = files(folder)
    data = file.read_bytes()
    file.unlink()
    turns = disk_cache.turn

    def after_another(key: executable_key.Key) -> object:
        file.write_bytes(data)
        return turns(key)

    monkeypatch.setattr(disk_cache, "turn", after_another)
    compiled, hits = counted("StableHloCompile"), counted("PersistentCacheHit")
    assert result() == expected
    assert (counted("StableHloCompile"), counted("PersistentCacheHit")) == (compiled, hits + 1)
    assert torch_xla.cache.statistics().bytes == len(data)
