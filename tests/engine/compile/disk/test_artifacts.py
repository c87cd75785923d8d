"""`torch.compiler.save_cache_artifacts` carries programs to a process with an empty folder, which compiles none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torch_xla._engine.compat.names import torch_caches
from torch_xla._engine.compile.disk import artifacts, cache_folder
from torch_xla._engine.compile.disk.artifacts import ExecutableFile

# Trains two steps by `torch.compile`, in the words of PyTorch's own page about these functions.
PROGRAM = """
import sys
from pathlib import Path
import torch, torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.compile.disk import disk_cache
disk_cache.WORTH_KEEPING_SECONDS = 0.0
file = Path(sys.argv[1])
if file.exists():
    info = torch.compiler.load_cache_artifacts(file.read_bytes())
    assert info is not None and info.xla_artifacts
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to("xla")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
compiled = torch.compile(model)
for step in range(2):
    optimizer.zero_grad()
    loss = compiled(torch.ones(3, 4, device="xla")).square().sum()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
with torch.inference_mode():
    loss = compiled(torch.ones(3, 4, device="xla")).sum()
print(met.counter_value("PersistentCacheHit") or 0, met.counter_value("PersistentCacheMiss") or 0, loss.item())
if not file.exists():
    saved, info = torch.compiler.save_cache_artifacts()
    assert info.xla_artifacts
    file.write_bytes(saved)
"""


def run(file: Path, folder: Path) -> tuple[int, int, float]:
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "XLA_PERSISTENT_CACHE_PATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(file)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    hits, misses, loss = done.stdout.split()
    return int(hits), int(misses), float(loss)


def test_another_process_with_the_artifacts_compiles_nothing(tmp_path: Path) -> None:
    hits, misses, loss = run(tmp_path / "saved", tmp_path / "one")
    assert hits == 0 and misses > 0
    assert run(tmp_path / "saved", tmp_path / "two") == (misses, 0, loss)


def test_an_artifact_is_read_when_it_is_saved_and_recorded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"a.xla": b"first"}
    monkeypatch.setattr(artifacts, "_read", lambda name: files.get(name, b""))
    with torch_caches.CacheArtifactManager.with_fresh_cache():
        artifacts.note("a.xla")
        artifacts.note("a.xla")
        files["a.xla"] = b"second"
        found = torch.compiler.save_cache_artifacts()
    assert found is not None
    saved, info = found
    assert info.artifacts == {"xla": ["a.xla"]}
    assert b"second" in saved and b"first" not in saved


def test_nothing_is_put_outside_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "folder"
    monkeypatch.setattr(cache_folder, "folder", lambda: place)
    monkeypatch.setattr(cache_folder, "is_read_only", lambda: False)
    for name in ("../a.xla", "/tmp/a.xla", "a.txt", "damaged.xla", "b.xla.numbers"):
        ExecutableFile(name, b"[1]").populate_cache()
    assert [path.name for path in place.iterdir()] == ["b.xla.numbers"]
    ExecutableFile("c.xla", b"").populate_cache()  # was deleted before it was saved
    assert not (place / "c.xla").exists()
