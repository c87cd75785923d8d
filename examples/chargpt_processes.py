"""Trains the text model of `chargpt.py` in several processes, whole in each of them or divided among them.

    CPU_NUM_DEVICES=2 python examples/chargpt_processes.py --way ddp fsdp
    torchrun --nproc-per-node 2 examples/chargpt_processes.py --way fsdp2 --save checkpoint
    torchrun --nproc-per-node 4 examples/chargpt_processes.py --way fsdp2 --resume checkpoint

`--way` is `ddp` (`DistributedDataParallel`), `fsdp` (`XlaFullyShardedDataParallel`) or `fsdp2` (PyTorch's
`fully_shard`), or several of these, one after the other. Every process takes its part of each batch. The losses are
held against those of one process with the whole batches on the CPU: the exit status is 1 if one of the first 20 is not
within 1e-4. `--out losses.png` draws the curves. Checkpoints that `--save` has written, one for each way, are gone on
from by `--resume`, by however many processes.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from chargpt import Block, CharGPT, Windows, next_character_loss, read_text
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend  # noqa: F401  (registers the backend "xla")
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel, full_state, load_full_state
from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy

BOUND = 1e-4
FIRST = 20


def replicated(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Tt]ime stats")  # DDP keeps times for CPU and CUDA only
        return DistributedDataParallel(model.to("xla"), gradient_as_bucket_view=True)


def divided(model: nn.Module) -> nn.Module:
    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return XlaFullyShardedDataParallel(model, auto_wrap_policy=policy)


def divided_by_pytorch(model: nn.Module) -> nn.Module:
    model = model.to("xla")
    mesh = init_device_mesh("xla", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": replicated,
    "fsdp": divided,
    "fsdp2": divided_by_pytorch,
}


def clip(model: nn.Module, most: float) -> None:
    if isinstance(model, XlaFullyShardedDataParallel):
        model.clip_grad_norm_(most)
    else:
        nn.utils.clip_grad_norm_(model.parameters(), most)


def save(path: str, way: str, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    os.makedirs(path, exist_ok=True)
    if way == "fsdp2":
        weights, states = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": states, "step": torch.tensor(step)}, checkpoint_id=path)
    elif way == "fsdp":
        xm.save({**full_state(model, optimizer), "step": step}, os.path.join(path, "whole.pth"))
    else:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        xm.save(state, os.path.join(path, "whole.pth"))


def resume(path: str, way: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    if way == "fsdp2":
        weights, states = get_state_dict(model, optimizer)
        loaded: dict[str, Any] = {"model": weights, "optimizer": states, "step": torch.tensor(0)}
        dcp.load(loaded, checkpoint_id=path)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
        return int(loaded["step"])
    state = torch.load(os.path.join(path, "whole.pth"), map_location="cpu")
    if way == "fsdp":
        load_full_state(model, state, optimizer)
    else:
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def batches(windows: Windows, steps: range, size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random windows of the text, for each step the same in every process and after every start."""
    for step in steps:
        drawn = torch.Generator().manual_seed(1000 * seed + step)
        pieces = [windows[int(start)] for start in torch.randint(len(windows), (size,), generator=drawn)]
        tokens, targets = zip(*pieces, strict=True)
        yield torch.stack(tokens), torch.stack(targets)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, windows: Windows, steps: range, args: argparse.Namespace,
    rank: int, count: int, device: str,
) -> list[Tensor]:  # fmt: skip
    """The loss of each step on part `rank` of `count` of each batch."""
    losses = []
    for batch in batches(windows, steps, args.batch_size, args.seed):
        tokens, targets = (each.chunk(count)[rank].to(device) for each in batch)
        optimizer.zero_grad()
        loss = next_character_loss(model, tokens, targets)
        loss.backward()
        clip(model, 1.0)
        optimizer.step()
        if device == "xla":
            torch_xla.sync()
        losses.append(loss.detach())
    return losses


def network(args: argparse.Namespace, vocabulary: int) -> nn.Module:
    torch.manual_seed(args.seed)
    return CharGPT(vocabulary, args.context, args.layers, args.width, args.heads, dropout=0.0)


def optimizer_of(model: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)


def draw(path: str, count: int, several: dict[str, list[float]], alone: list[float]) -> None:
    axes = (figure := Figure(figsize=(6, 3.6), layout="constrained")).subplots()
    axes.plot(alone, label="one process, CPU", linewidth=4, alpha=0.4)
    for way, losses in several.items():
        axes.plot(losses, label=f"{count} processes, xla, {way}", linewidth=1.2)
    axes.set(xlabel="step", ylabel="loss per character")
    axes.legend()
    figure.savefig(path, dpi=120)


def main(index: int, args: argparse.Namespace) -> None:
    """One of the processes."""
    dist.init_process_group("xla", init_method="xla://")
    text = read_text()
    windows, vocabulary = Windows(text.train, args.context), len(text.characters)
    begin, several = 0, {}
    for way in args.way:
        begin, several[way] = trained(way, args, windows, vocabulary)
    if dist.get_rank() == 0:
        compare(args, windows, several, begin, vocabulary)
    dist.barrier()
    dist.destroy_process_group()


def trained(way: str, args: argparse.Namespace, windows: Windows, vocabulary: int) -> tuple[int, list[float]]:
    """The number of the first step, and the losses of all processes together."""
    model = WAYS[way](network(args, vocabulary))
    optimizer = optimizer_of(model, args)
    begin = resume(os.path.join(args.resume, way), way, model, optimizer) if args.resume else 0
    steps = range(begin, begin + args.steps)
    rank, count = dist.get_rank(), dist.get_world_size()
    losses = torch.stack(train(model, optimizer, windows, steps, args, rank, count, "xla"))
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    if args.save:
        save(os.path.join(args.save, way), way, model, optimizer, steps.stop)
    return begin, losses.tolist()


def compare(
    args: argparse.Namespace, windows: Windows, several: dict[str, list[float]], begin: int, vocabulary: int
) -> None:
    """Trains in one process from the beginning, and holds the losses of these runs against its."""
    compared = args.steps if args.out else min(FIRST, args.steps)
    model, count, missed = network(args, vocabulary), dist.get_world_size(), []
    steps = range(begin + compared)
    alone = [loss.item() for loss in train(model, optimizer_of(model, args), windows, steps, args, 0, 1, "cpu")][begin:]
    for way, losses in several.items():
        difference = max(abs(a - b) for a, b in zip(losses[:FIRST], alone[:FIRST], strict=False))
        print(f"{way}, {count} processes: loss {losses[0]:.4f} → {losses[-1]:.4f} in steps {begin} to "
              f"{begin + len(losses) - 1}")  # fmt: skip
        print(f"largest difference to one process in the first {FIRST} of them {difference:.1e}", flush=True)
        missed += [way] if difference > BOUND else []
    if args.out:
        draw(args.out, count, several, alone)
    if missed:
        sys.exit(f"missed: a loss of {', '.join(missed)} is not within {BOUND} of that of one process")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--way", choices=WAYS, default=["ddp"], nargs="+")
    parser.add_argument("--steps", type=int, help="by default 200, with --fast 20")
    parser.add_argument("--batch-size", type=int, default=16, help="of all processes together")
    parser.add_argument("--context", type=int, default=64, help="characters that the model sees")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", metavar="FOLDER", help="write a checkpoint at the end of each way")
    parser.add_argument("--resume", metavar="FOLDER", help="go on from a checkpoint")
    parser.add_argument("--out", metavar="PICTURE", help="draw the losses beside those of one process")
    parser.add_argument("--fast", action="store_true", help="a tiny model and 20 steps")
    args = parser.parse_args()
    if args.fast:
        args.layers, args.width, args.heads, args.context = 2, 32, 2, 32
    args.steps = args.steps or (20 if args.fast else 200)
    return args


if __name__ == "__main__":
    torch_xla.launch(main, args=(arguments(),))
