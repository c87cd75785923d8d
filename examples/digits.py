"""Trains a small convolutional network on scikit-learn's handwritten digits, on the xla device and on the CPU.

    python examples/digits.py [--epochs 12] [--batch-size 32] [--out digits.png]

The program is ordinary PyTorch: three lines make it run on the xla device (marked `xla:`). Afterwards the same
training runs on the CPU, the two are compared, a picture is written, and the bounds are checked: the exit status
is 1 if the held-out accuracy, its distance from the CPU's, or the loss of the first steps is not what it must be.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice, repeat
from pathlib import Path

import matplotlib
import torch
import torch.nn.functional as F
from matplotlib import pyplot
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl

SHOW_EVERY = 10  # steps between two readings of the loss: each one waits for the device
COMPARED_STEPS = 20
LOSS_BOUND = 1e-3
ACCURACY_BOUND = 0.97
DISTANCE_BOUND = 0.01


@dataclass(frozen=True)
class Digits:
    """The 1,797 images of 8x8 pixels, a fifth of them held out, every class in its proportion."""

    train: TensorDataset
    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Run:
    """The results of one training."""

    losses: list[float]
    predictions: Tensor
    accuracy: float
    seconds: float


def digits(seed: int) -> Digits:
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    chosen, held = train_test_split(range(len(labels)), test_size=0.2, stratify=labels, random_state=seed)
    return Digits(TensorDataset(images[chosen], labels[chosen]), images[held], labels[held])


def network(dropout: float, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(256, 10),
    )


def steps_per_epoch(data: Digits, args: argparse.Namespace) -> int:
    return len(data.train) // args.batch_size


def batches(data: Digits, batch_size: int, seed: int, device: torch.device) -> Iterator[list[Tensor]]:
    """Shuffled batches on `device`, epoch after epoch, all of one size: a smaller one would cost a compilation."""
    order = torch.Generator().manual_seed(seed)
    loader = DataLoader(data.train, batch_size, shuffle=True, drop_last=True, generator=order)
    # xla: uploads in the background, and ends each step with `torch_xla.sync()`.
    loader = pl.MpDeviceLoader(loader, device) if device.type == "xla" else loader
    return chain.from_iterable(repeat(loader))


def train(data: Digits, device: torch.device, args: argparse.Namespace, dropout: float, steps: int) -> Run:
    """Trains for `steps` steps from the weights that the seed gives, then looks at the held-out digits."""
    started = time.perf_counter()
    model = network(dropout, args.seed).to(device)  # xla: the device
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * steps_per_epoch(data, args))
    losses: list[Tensor] = []
    with tqdm(total=steps, desc=f"{device.type:>4}", unit="step", disable=None) as bar:
        for images, labels in islice(batches(data, args.batch_size, args.seed, device), steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
            show(bar, losses[-1], device)
    if device.type == "xla":
        torch_xla.sync()  # xla: the last step has no successor that would end it
    predictions = predict(model, data.images.to(device))
    accuracy = (predictions == data.labels).float().mean().item()
    return Run([loss.item() for loss in losses], predictions, accuracy, time.perf_counter() - started)


def show(bar: tqdm, loss: Tensor, device: torch.device) -> None:
    bar.update()
    if bar.disable or bar.n % SHOW_EVERY:  # in a file there is no bar
        return
    if device.type == "xla":
        # xla: the value is read after the step has been sent off, so that reading it does not cut the step in two.
        xm.add_step_closure(lambda value: bar.set_postfix(loss=f"{value.item():.4f}"), args=(loss,))
    else:
        bar.set_postfix(loss=f"{loss.item():.4f}")


@torch.no_grad()
def predict(model: nn.Module, images: Tensor) -> Tensor:
    model.eval()
    return model(images).argmax(1).cpu()


def picture(path: Path, data: Digits, ours: Run, cpu: Run) -> None:
    """Both loss curves, and held-out digits with their predictions: all the wrong ones, in red, and some right ones."""
    wrong = (ours.predictions != data.labels).nonzero().flatten().tolist()
    right = (ours.predictions == data.labels).nonzero().flatten().tolist()
    shown = (wrong + right)[:24]
    figure = pyplot.figure(figsize=(12, 5), layout="constrained")
    left, grid = figure.subfigures(1, 2)
    axes = left.subplots()
    for run, name, style in ((ours, "xla", "-"), (cpu, "cpu", "--")):
        axes.plot(run.losses, style, label=f"{name}: {run.accuracy:.2%} held out", linewidth=1)
    axes.set(xlabel="step", ylabel="loss", yscale="log", title="Training loss")
    axes.legend()
    for index, cell in zip(shown, grid.subplots(4, 6).flat, strict=False):
        label, prediction = data.labels[index].item(), ours.predictions[index].item()
        cell.imshow(data.images[index, 0], cmap="gray_r")
        cell.set_title(str(prediction) if prediction == label else f"{prediction}, is {label}", fontsize=9)
        cell.title.set_color("black" if prediction == label else "red")
        cell.set_xticks([])
        cell.set_yticks([])
        cell.spines[:].set_color("black" if prediction == label else "red")
    grid.suptitle(f"Held-out digits: {len(wrong)} of {len(data.labels)} wrong")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def samples(metric: str) -> int:
    recorded = met.metric_data(metric)
    return recorded[0] if recorded else 0


def fallbacks() -> list[str]:
    """The operators that ran on the CPU. Reading the loss with `.item()` is none of them."""
    return [name for name in met.executed_fallback_ops() if name != "aten::_local_scalar_dense"]


def summary() -> str:
    """Summarize the work of the device, from the metrics."""
    recorded = met.metric_data("CompileTime")
    seconds = recorded[1] / 1e9 if recorded else 0.0
    return (
        f"compiles {samples('CompileTime')} ({seconds:.1f} s), executions {samples('ExecuteTime')}, "
        f"transfers to the device {samples('TransferToDeviceTime')} and from it {samples('TransferFromDeviceTime')}, "
        f"CPU fallbacks {len(fallbacks())}"
    )


def missed_bounds(ours: Run, cpu: Run, difference: float, fast: bool) -> list[str]:
    missed = []
    # A run of few epochs has not settled: then only the first steps can be judged.
    if not fast and ours.accuracy < ACCURACY_BOUND:
        missed.append(f"held-out accuracy {ours.accuracy:.2%} is below {ACCURACY_BOUND:.0%}")
    if not fast and abs(ours.accuracy - cpu.accuracy) > DISTANCE_BOUND:
        missed.append(f"held-out accuracy {ours.accuracy:.2%} is more than 1 % from the CPU's {cpu.accuracy:.2%}")
    # Written so that a NaN counts as missed.
    if not difference <= LOSS_BOUND:
        missed.append(f"the losses of the first {COMPARED_STEPS} steps differ by {difference:.1e} > {LOSS_BOUND:.0e}")
    if fallbacks():
        missed.append(f"operators ran on the CPU: {', '.join(fallbacks())}")
    return missed


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="xla")
    parser.add_argument("--out", type=Path, default=Path("digits.png"), help="where the picture goes")
    parser.add_argument("--fast", action="store_true", help="two epochs; the accuracy is printed but not judged")
    args = parser.parse_args(argv)
    if args.fast:
        args.epochs = min(args.epochs, 2)
    return args


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    matplotlib.use("agg")
    device, host = torch.device(args.device), torch.device("cpu")
    data = digits(args.seed)
    torch_xla.manual_seed(args.seed)

    steps = args.epochs * steps_per_epoch(data, args)
    ours = train(data, device, args, args.dropout, steps)
    done = summary()
    cpu = train(data, host, args, args.dropout, steps)
    # Without dropout nothing random is left, so the losses must agree.
    exact = [train(data, where, args, 0.0, COMPARED_STEPS).losses for where in (device, host)]
    difference = max(abs(a - b) for a, b in zip(*exact, strict=True))
    picture(args.out, data, ours, cpu)

    print(f"held-out accuracy: {device} {ours.accuracy:.2%} in {ours.seconds:.1f} s, "
          f"cpu {cpu.accuracy:.2%} in {cpu.seconds:.1f} s")  # fmt: skip
    print(f"first {COMPARED_STEPS} steps without dropout: the losses differ by at most {difference:.1e}")
    print(f"{device}: {done}")
    print(f"picture: {args.out}")
    missed = missed_bounds(ours, cpu, difference, args.fast)
    for bound in missed:
        print(f"missed: {bound}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
