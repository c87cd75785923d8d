"""Trains one network in two workers of Ray Train, each with a device, by `DistributedDataParallel`.

    python examples/ray_train.py [--fast]

Needs `pip install 'ray[train]'`. Every worker takes its part of each batch; the losses are held against those of one
process that takes the whole.
"""

import argparse
import importlib
import os
import warnings
from dataclasses import dataclass
from typing import Any

import ray
import torch
import torch.distributed as dist
from processes import network, train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch.nn.parallel import DistributedDataParallel


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


def worker(given: dict[str, int]) -> list[float]:
    """One of the workers; Ray has made the process group. Returns the mean loss of each step."""
    rank, count = dist.get_rank(), dist.get_world_size()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Tt]ime stats")  # DDP keeps times for CPU and CUDA only
        model = DistributedDataParallel(network().to("xla"), gradient_as_bucket_view=True)
        losses = torch.stack(train(model, given["steps"], given["size"], rank, count, "xla"))
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    return losses.tolist()


def main(steps: int, size: int, storage: str) -> None:
    ray.init(num_cpus=3, include_dashboard=False)
    trainer = TorchTrainer(
        worker,
        train_loop_config={"steps": steps, "size": size},
        torch_config=XlaConfig(),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=os.path.abspath(storage)),
    )
    losses = trainer.fit().return_value
    ray.shutdown()
    alone = [loss.item() for loss in train(network(), steps, size, 0, 1, "cpu")]
    difference = max(abs(a - b) for a, b in zip(losses[:20], alone[:20], strict=True))
    print(f"2 workers of Ray: loss {losses[0]:.4f} → {losses[-1]:.4f}")
    print(f"largest difference to one process in the first 20 steps {difference:.1e}")
    assert difference < 1e-4


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="20 steps")
    parser.add_argument("--storage", default="out/ray", help="where Ray keeps what the workers report")
    options = parser.parse_args()
    main(20 if options.fast else 200, 64, options.storage)
