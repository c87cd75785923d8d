"""`CheckpointManager` restores the checkpoints of plain Orbax, and plain Orbax those of `CheckpointManager`."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from tests.support import compiler
from torch_xla.experimental.distributed_checkpoint import CheckpointManager

needs_orbax = pytest.mark.skipif(find_spec("orbax") is None, reason="needs pip install orbax-checkpoint")
ignores = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:orbax")

# Programs without torch_xla: one writes a step as JAX's users do, one reads and prints what it finds.
WRITES = """
import sys
import jax.numpy as jnp, numpy as np, orbax.checkpoint as ocp
folder, kind = sys.argv[1:]
model = {"weight": jnp.arange(12, dtype=jnp.float32).reshape(4, 3), "bias": jnp.full(4, 1.5, jnp.bfloat16)}
optimizer = {"state": [{"m": np.full((4, 3), 2.0, np.float32)}], "param_groups": [{"lr": 0.1, "params": [0, 1]}]}
if kind == "bare":
    with ocp.StandardCheckpointer() as bare:
        bare.save(f"{folder}/7", {"model": model, "optimizer": optimizer, "epoch": 3})
elif kind == "zarr3":
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=True)
    ocp.Checkpointer(handler).save(f"{folder}/7", {"model": model, "optimizer": optimizer, "epoch": 3})
else:
    with ocp.CheckpointManager(folder) as manager:
        if kind == "items":
            save = ocp.args.StandardSave
            items = {"model": save(model), "optimizer": save(optimizer), "epoch": ocp.args.JsonSave({"epoch": 3})}
            manager.save(7, args=ocp.args.Composite(**items))
        else:
            manager.save(7, args=ocp.args.StandardSave({"model": model, "optimizer": optimizer, "epoch": 3}))
"""
READS = """
import json, sys
import numpy as np, orbax.checkpoint as ocp
manager = ocp.CheckpointManager(sys.argv[1])
found = manager.restore(manager.latest_step(), args=ocp.args.PyTreeRestore())
assert not any(name.startswith("torch") for name in sys.modules)
def shown(x):
    if isinstance(x, dict):
        return {key: shown(each) for key, each in x.items()}
    if isinstance(x, list):
        return [shown(each) for each in x]
    return [str(x.dtype), np.asarray(x, np.float64).tolist()] if hasattr(x, "dtype") else x
print(json.dumps([manager.all_steps(), shown(found)]))
"""
MESH = """
import sys
import torch, torch_xla.runtime as xr, torch_xla.distributed.spmd as xs
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, prime_optimizer
xr.use_spmd()
assert xr.global_runtime_device_count() == 4
mesh = xs.Mesh(range(4), (4, 1), ("a", "b"))

def training(spec, seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(16, 8).to("xla")
    xs.mark_sharding(model.weight, mesh, spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    prime_optimizer(optimizer)
    return model, optimizer

def losses(model, optimizer):
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.linspace(-1, 1, 64).view(4, 16).to("xla")).pow(2).mean()
        loss.backward()
        optimizer.step()
        found.append(round(loss.item(), 5))
    return found

def state(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

first = training(("a", None), 0)
losses(*first)
manager = CheckpointManager(sys.argv[1], 1, chkpt_on_preemption=False, format="orbax")
assert manager.save_async(1, state(*first))
expected = losses(*first)
manager.join()
for spec in ((None, "a"), (None, None), ("a", None)):
    again = training(spec, 1)
    into = state(*again)
    assert manager.restore_latest(into) == 1
    again[1].load_state_dict(into["optimizer"])
    assert losses(*again) == expected, (spec, expected)
"""


def run(program: str, *arguments: str, **settings: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path), **settings}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def manager(folder: Path, **options: Any) -> CheckpointManager:
    return CheckpointManager(str(folder), 1, chkpt_on_preemption=False, **options)


def zeros() -> dict[str, Any]:
    model = {
        "weight": torch.zeros(4, 3, device="xla"),
        "bias": torch.zeros(4, dtype=torch.bfloat16, device="xla"),
    }
    optimizer = {"state": [{"m": torch.zeros(4, 3, device="xla")}], "param_groups": [{"lr": 9.0, "params": []}]}
    return {"model": model, "optimizer": optimizer, "epoch": 0}


@needs_orbax
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one", "items", "bare", "zarr3"])
def test_what_plain_orbax_wrote_is_restored(kind: str, tmp_path: Path) -> None:
    run(WRITES, str(tmp_path), kind)
    kept, state = manager(tmp_path), zeros()
    if kind == "items":
        del state["epoch"]
    weight = state["model"]["weight"]
    assert kept.all_steps() == [7] and kept.restore_latest(state) == 7 and kept.restored_from == "path"
    assert state["model"]["weight"] is weight and weight.device.type == "xla"
    assert weight.tolist() == torch.arange(12.0).reshape(4, 3).tolist()
    assert state["model"]["bias"].tolist() == [1.5] * 4 and state["model"]["bias"].dtype is torch.bfloat16
    assert state["optimizer"]["state"][0]["m"].eq(2).all()
    assert state["optimizer"]["param_groups"] == [{"lr": pytest.approx(0.1), "params": [0, 1]}]
    assert state.get("epoch", 3) == 3
    with pytest.raises(CheckpointException, match=r"Missing key in checkpoint state_dict: model\.scale"):
        kept.restore(7, {"model": {"scale": torch.zeros(4, device="xla")}})
    with pytest.raises(CheckpointException, match=r"Size mismatch .*\[4, 3\].*\[2\].*model\.weight"):
        kept.restore(7, {"model": {"weight": torch.zeros(2, device="xla")}})


@needs_orbax
@ignores
def test_plain_orbax_restores_what_is_written(tmp_path: Path) -> None:
    kept = manager(tmp_path, format="orbax", max_to_keep=2)
    module = torch.nn.Linear(2, 2).to("xla", torch.bfloat16)
    values = {name: each.cpu().float().tolist() for name, each in module.state_dict().items()}
    for step in range(3):
        state = {"model": module.state_dict(), "step": torch.tensor(step), "lr": 0.5, "note": "it", "list": [1, None]}
        assert kept.save_async(step, state)
        with torch.no_grad():
            module.weight.add_(1)
    kept.join()
    steps, found = json.loads(run(READS, str(tmp_path)))
    values["weight"] = (torch.tensor(values["weight"]).bfloat16() + 1 + 1).float().tolist()
    assert steps == kept.all_steps() == [1, 2]
    assert found == {
        "model": {name: ["bfloat16", each] for name, each in values.items()},
        "step": ["int64", 2],
        "lr": 0.5,
        "note": "it",
        "list": [1, None],
    }
    into: dict[str, Any] = {
        "model": torch.nn.Linear(2, 2).to("xla", torch.bfloat16).state_dict(),
        "lr": 0.0,
        "note": "",
        "list": [],
    }
    assert manager(tmp_path).restore_latest(into) == 2
    assert {name: each.cpu().float().tolist() for name, each in into["model"].items()} == values
    assert (into["lr"], into["note"], into["list"]) == (0.5, "it", [1, None])


@needs_orbax
@pytest.mark.slow
def test_a_training_on_a_mesh_goes_on_under_another_layout(tmp_path: Path) -> None:
    run(MESH, str(tmp_path), XLA_FLAGS=compiler.with_devices(4))


@needs_orbax
@ignores
@pytest.mark.parametrize("lost", ["manifest.ocdbt", "d"])
def test_damage_is_said(lost: str, tmp_path: Path) -> None:
    kept = manager(tmp_path, format="orbax")
    state: dict[str, object] = {"w": torch.randn(40_000).to("xla")}
    for step in range(2):
        kept.save(step, state)
    damaged = tmp_path / "1" / "default" / lost
    if damaged.is_dir():
        for each in (tmp_path / "1" / "default").rglob("d"):
            shutil.rmtree(each)
    else:
        data = bytearray(damaged.read_bytes())
        data[len(data) // 2] ^= 1
        damaged.write_bytes(data)
    with pytest.warns(UserWarning, match="the checkpoint of step 1 in .* is damaged"):
        assert kept.restore_latest(state) == 0


@needs_orbax
@ignores
def test_values_that_orbax_has_no_form_for_are_refused(tmp_path: Path) -> None:
    kept = manager(tmp_path, format="orbax")
    with pytest.raises(TypeError, match=r"'a\.0\.dtype' is a dtype, and Orbax writes .*or save without format="):
        kept.save(1, {"a": [{"dtype": torch.float32}]})
    with pytest.raises(ValueError, match="'w' is empty, and Orbax writes no empty arrays"):
        kept.save(1, {"w": torch.zeros(0, device="xla")})
    assert kept.all_steps() == []


def test_without_the_library_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.import_module

    def hidden(name: str, *others: Any) -> Any:
        if name.startswith(("orbax", "tensorstore")):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return find(name, *others)

    monkeypatch.setattr(importlib, "import_module", hidden)
    with pytest.raises(ImportError, match=r"needs orbax\.checkpoint: pip install orbax-checkpoint"):
        manager(tmp_path, format="orbax").save(1, {"w": torch.ones(2, device="xla")})
    folder = tmp_path / "2" / "default"
    folder.mkdir(parents=True)
    leaf = {"key_metadata": [{"key": "w", "key_type": 2}], "value_metadata": {"value_type": "np.ndarray"}}
    (folder / "_METADATA").write_text(json.dumps({"tree_metadata": {"('w',)": leaf}, "use_ocdbt": True}))
    with pytest.raises(ImportError, match="needs tensorstore: pip install orbax-checkpoint"):
        manager(tmp_path).restore_latest({"w": torch.ones(2, device="xla")})


def test_formats_and_addresses_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="format is 'dcp' or 'orbax'; got 'zarr'"):
        manager(tmp_path, format="zarr")
    with pytest.raises(NotImplementedError, match=r"writes to a folder, and the path is 'memory://run'"):
        CheckpointManager("memory://run", 1, chkpt_on_preemption=False, format="orbax")


def test_a_job_does_not_begin_anew_beside_steps_of_orbax_at_an_address() -> None:
    store = fsspec.filesystem("memory")
    store.pipe_file("/orbax-run/5/_CHECKPOINT_METADATA", b"{}")
    manager = CheckpointManager("memory://orbax-run", 1, chkpt_on_preemption=False)
    try:
        for ask in (manager.all_steps, lambda: manager.restore_latest({})):
            with pytest.raises(NotImplementedError, match="Orbax has written step 5, .* Copy them to a folder"):
                ask()
        store.pipe_file("/orbax-run/6/.complete", b"1.0")
        assert manager.all_steps() == [6]
    finally:
        store.rm("/orbax-run", recursive=True)
