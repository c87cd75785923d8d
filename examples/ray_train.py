"""Trains one network in two workers of Ray Train, each with a device, by `DistributedDataParallel`.

    python examples/ray_train.py [--fast] [--lose 12]

Needs `pip install 'ray[train]'`. Every worker takes its part of each batch. The losses are compared with those of one
process that takes the whole. With `--lose` a worker is killed in that step, and Ray starts all of them again.
"""

import argparse
import importlib
import os
import signal
import tempfile
import warnings
from dataclasses import dataclass
from typing import Any

import ray
import torch
import torch.distributed as dist
from processes import batch, network, train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EVERY = 5


def register() -> None:
    """Makes the backend "xla" known in a worker."""
    importlib.import_module("torch_xla.distributed.xla_backend")


class XlaBackend(TorchConfig().backend_cls):
    """Ray's backend for PyTorch, which imports our backend before it makes the process group."""

    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        """Called when the workers have started."""
        worker_group.execute(register)
        super().on_start(worker_group, backend_config)


@dataclass
class XlaConfig(TorchConfig):
    """The configuration of a trainer whose workers have an xla device each."""

    backend: str = "xla"

    @property
    def backend_cls(self) -> type:
        """Return the class that sets up the workers."""
        return XlaBackend


def save(path: str, state: dict[str, Any]) -> None:
    """Writes a checkpoint as a whole or not at all."""
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)


def worker(given: dict[str, Any]) -> list[float]:
    """One of the workers; Ray has made the process group. Returns the mean loss of each step.

    After a loss Ray starts all workers again, and they go on from the last checkpoint.
    """
    rank, count, path = dist.get_rank(), dist.get_world_size(), given["checkpoint"]
    warnings.filterwarnings("ignore", message=".*[Tt]ime stats")  # DDP keeps times for CPU and CUDA only
    model = DistributedDataParallel(network().to("xla"), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    state: dict[str, Any] = {"losses": []}
    if os.path.exists(path):
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    losses = state["losses"]
    for step in range(len(losses), given["steps"]):
        if step == given["lose"] and rank == count - 1 and not os.path.exists(f"{path}.lost"):
            open(f"{path}.lost", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        x, y = (each.chunk(count)[rank].to("xla") for each in batch(step, given["size"]))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
        if (step + 1) % EVERY == 0 and rank == 0:
            save(path, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses})
    return losses


def main(steps: int, size: int, storage: str, lose: int) -> None:
    storage = os.path.abspath(storage)
    os.makedirs(storage, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=storage) as run:
        ray.init(num_cpus=3, include_dashboard=False)
        trainer = TorchTrainer(
            worker,
            train_loop_config={"steps": steps, "size": size, "lose": lose, "checkpoint": f"{run}/last.pt"},
            torch_config=XlaConfig(),
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=storage, failure_config=FailureConfig(max_failures=1)),
        )
        losses = trainer.fit().return_value
        ray.shutdown()
        assert os.path.exists(f"{run}/last.pt.lost") == (lose >= 0)
    alone = [loss.item() for loss in train(network(), steps, size, 0, 1, "cpu")]
    difference = max(abs(a - b) for a, b in zip(losses[:20], alone[:20], strict=True))
    lost = f", one lost in step {lose}" if lose >= 0 else ""
    print(f"2 workers of Ray{lost}: loss {losses[0]:.4f} → {losses[-1]:.4f}")
    print(f"largest difference to one process in the first 20 steps {difference:.1e}")
    assert difference < 1e-4


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="20 steps")
    parser.add_argument("--storage", default="out/ray", help="where Ray keeps what the workers report")
    parser.add_argument("--lose", type=int, default=-1, help="the step in which a worker is killed")
    options = parser.parse_args()
    main(20 if options.fast else 200, 64, options.storage, options.lose)
