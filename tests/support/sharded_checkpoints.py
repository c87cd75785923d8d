"""Checkpoints over virtual CPU devices: a program with the folder and what to do for arguments.

`save` writes on the devices that there are; `load` reads them under another layout, or on one device; `die` is killed
while it saves. See tests/api/distributed/test_sharded_checkpoints.py.
"""

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla.experimental import distributed_checkpoint as checkpoints
from torch_xla.experimental.distributed_checkpoint import _helpers, _places


def _model(spec: tuple[Any, ...]) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 8)).to("xla")
    if xr.is_spmd():
        count = xr.global_runtime_device_count()
        mesh = xs.Mesh(np.arange(count), (count, 1), ("a", "b"))
        for layer in model:
            xs.mark_sharding(layer.weight, mesh, spec)  # type: ignore[arg-type]
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss = model(torch.linspace(-1, 1, 64).view(4, 16).to("xla")).pow(2).mean()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
    return float(loss)


def save(folder: Path) -> None:
    """Three steps; then what the next two give, and the state before them, by planners and by a manager."""
    model, optimizer = _model(("a", None))
    for _ in range(3):
        _step(model, optimizer)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "note": "three"}
    assert _helpers._is_sharded_tensor(state["model"]["0.weight"])  # type: ignore[index]
    dcp.save(state, checkpoint_id=folder / "plain", planner=checkpoints.SPMDSavePlanner(), no_dist=True)
    chosen = checkpoints.CheckpointManager(str(folder / "steps"), 2, max_to_keep=2, chkpt_on_preemption=True)
    for step in range(7):
        saved = chosen.save_async(step, {"model": model.state_dict(), "step": step})
        assert saved == (step % 2 == 0)
        with torch.no_grad():
            model[0].bias.add_(0)  # type: ignore[index, operator]
    chosen.join()
    assert chosen.all_steps() == [4, 6]
    assert not chosen.should_save(7)
    os.kill(os.getpid(), signal.SIGTERM)
    # The signal reaches JAX's service after a moment; then the processes agree on a step.
    last = next(step for step in itertools.count(7, 2) if chosen.save(step, {"model": model.state_dict(), "step": 7}))
    assert chosen.reached_preemption(last) and chosen.all_steps() == [6, last]
    (folder / "steps" / str(last)).rename(folder / "steps" / "7")
    torch.save([_step(model, optimizer) for _ in range(2)], folder / "losses.pt")


def _check_that_the_state_lies_as_its_parameter(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        expected = xs.wrap_as_sharded_tensor(parameter).sharding_spec
        for name in ("exp_avg", "exp_avg_sq"):
            assert xs.wrap_as_sharded_tensor(optimizer.state[parameter][name]).sharding_spec == expected, name


def load(folder: Path) -> None:
    """Goes on from there."""
    model, optimizer = _model((None, "a"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    checkpoints.prime_optimizer(optimizer)
    _check_that_the_state_lies_as_its_parameter(model, optimizer)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "note": ""}
    dcp.load(state, checkpoint_id=folder / "plain", planner=checkpoints.SPMDLoadPlanner(), no_dist=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    _check_that_the_state_lies_as_its_parameter(model, optimizer)
    assert state["note"] == "three"
    if xr.is_spmd():
        count = xr.global_runtime_device_count()
        shapes = [list(shard.data.shape) for shard in xs.wrap_as_sharded_tensor(model[0].weight).local_shards]  # type: ignore[index]
        assert shapes == [[8, 16 // count]] * count
    found = [_step(model, optimizer) for _ in range(2)]
    torch.testing.assert_close(found, torch.load(folder / "losses.pt"), rtol=1e-4, atol=1e-6)
    chosen = checkpoints.CheckpointManager(str(folder / "steps"), 2, chkpt_on_preemption=False)
    kept = {"model": model.state_dict(), "step": 0}
    chosen.restore(7, kept)
    assert kept["step"] == 7


def die(folder: Path) -> None:
    """Is killed when the second checkpoint is nearly written."""
    model, _ = _model(("a", None))
    chosen = checkpoints.CheckpointManager(str(folder / "killed"), 1, chkpt_on_preemption=False)
    chosen.save(0, model.state_dict())
    finish = _places.FileSystemWriter.finish

    def killed(self: Any, metadata: Any, results: Any) -> None:
        if "1.partial" in str(self.path):
            os.kill(os.getpid(), signal.SIGKILL)
        finish(self, metadata, results)

    _places.FileSystemWriter.finish = killed  # type: ignore[method-assign]
    chosen.save(1, model.state_dict())


if __name__ == "__main__":
    if os.environ.get("XLA_FLAGS"):
        xr.use_spmd()
    globals()[sys.argv[2]](Path(sys.argv[1]))
