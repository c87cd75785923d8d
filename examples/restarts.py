"""Goes on from the last checkpoint when a process is lost: `torchrun` starts all anew, and no step is done twice over.

    torchrun --standalone --nproc-per-node 2 --max-restarts 2 examples/restarts.py --lose 12

In step 12 of the first attempt one process is killed. The others raise, `torchrun` starts everybody again, and the
training goes on from the checkpoint: the final loss is that of a run without `--lose`, to the last digit.
"""

import argparse
import os
import signal
from typing import Any

import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

EVERY = 5


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4))


def part(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This process's inputs of shape (8, 16) and their classes: they depend on the step alone."""
    generator = torch.Generator().manual_seed(1000 * step + xr.global_ordinal())
    x = torch.randn(8, 16, generator=generator)
    return x.to("xla"), x[:, :4].argmax(1).to("xla")


def save(path: str, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """Writes a checkpoint as a whole or not at all: a process that is lost meanwhile leaves the previous one."""
    total = xm.all_reduce(xm.REDUCE_SUM, loss.detach(), scale=1 / xr.world_size())
    state: dict[str, Any] = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    state["loss"] = total.item()  # read by all processes: each has its part in the sum
    xm.save(state, f"{path}.new")
    if xm.is_master_ordinal(local=False):
        os.replace(f"{path}.new", path)


def main(index: int, options: argparse.Namespace) -> None:
    """One of the processes, from the last checkpoint if there is one."""
    model = network().to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first = 0
    if os.path.exists(options.checkpoint):
        state = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
        xm.master_print(f"goes on at step {first}", flush=True)
    is_first_attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    total = torch.tensor(state["loss"] if first else 0.0)
    for step in range(first, options.steps):
        if step == options.lose and is_first_attempt and xr.global_ordinal() == xr.world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        torch_xla.manual_seed(1000 * step + xr.global_ordinal())  # what is dropped depends on the step alone, too
        x, y = part(step)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync()
        if (step + 1) % EVERY == 0:
            save(options.checkpoint, step + 1, model, optimizer, loss)
    if first < options.steps:
        total = xm.all_reduce(xm.REDUCE_SUM, loss.detach(), scale=1 / xr.world_size())
    xm.master_print(f"{xr.world_size()} processes: final loss {total.item()!r}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", default="restarts.pt", help="where it lies, and is looked for")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lose", type=int, default=-1, help="the step in which a process is lost")
    parser.add_argument("--fast", action="store_true", help="20 steps")
    given = parser.parse_args()
    given.steps = 20 if given.fast else given.steps
    torch_xla.launch(main, args=(given,))
