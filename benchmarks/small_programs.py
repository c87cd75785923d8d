"""Measures what is bound by many small programs or operations: ours beside eager PyTorch, in turn in one process.

    python -m benchmarks.small_programs [--only lbfgs,recurrence] [--rounds 7] [--write docs/benchmarks.md]

Plain PyTorch on models of a few thousand parameters, in milliseconds a step: "recorded" ends with a sync, "replay" is
the same function under `torch_xla.compile(replay=True)`, where it reads nothing on the host. The first three losses
must be those of eager PyTorch. A ratio is the median of the ratios of rounds side by side.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import torch_xla
from benchmarks import machine, page

HEADING = "## Many small programs"
Step = Callable[[], Tensor]
STEPS = 5


def mlp(device: str, depth: int = 3, width: int = 64) -> tuple[nn.Module, Tensor, Tensor]:
    """A model, its inputs (64, 16) and targets (64, 1), the same wherever it runs."""
    generator = torch.Generator().manual_seed(0)
    sizes = [16, *[width] * depth, 1]
    layers = [each for n, m in zip(sizes, sizes[1:], strict=False) for each in (nn.Linear(n, m), nn.Tanh())][:-1]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    x = torch.randn(64, 16, generator=generator)
    return model.to(device), x.to(device), x.square().mean(1, keepdim=True).to(device)


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """One step, and its loss."""
    return lessened(F.mse_loss(model(x), y), optimizer)


def lessened(loss: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    """The loss, after the optimizer has gone a step by its gradients."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def tiny_sgd(device: str) -> Step:
    """One linear layer with SGD."""
    model, x, y = mlp(device, depth=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return lambda: trained(model, optimizer, x, y)


def lbfgs(device: str) -> Step:
    """Return a step of L-BFGS: up to ten iterations, with reads of values that decide how to continue."""
    model, x, y = mlp(device)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=10, history_size=5)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    return lambda: optimizer.step(closure).detach()


def one_by_one(device: str) -> Step:
    """AdamW over one tensor at a time (`foreach=False`), of eight layers."""
    model, x, y = mlp(device, depth=7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    return lambda: trained(model, optimizer, x, y)


def averaged(device: str) -> Step:
    """SGD, and an exponential average of the parameters beside them."""
    model, x, y = mlp(device, depth=7)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> Tensor:
        loss = trained(model, optimizer, x, y)
        average.update_parameters(model)
        return loss

    return step


def autocast(device: str) -> Step:
    """Autocast to bfloat16, eight layers with AdamW."""
    model, x, y = mlp(device, depth=7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            loss = F.mse_loss(model(x).float(), y)
        return lessened(loss, optimizer)

    return step


def recurrence(device: str) -> Step:
    """A linear recurrence over 48 steps of time, unrolled in Python as RWKV's reference does, forward and backward."""
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(48, 4, 32, generator=generator).to(device) for _ in range(2))
    decay = nn.Parameter(torch.full((32,), -0.5).to(device))
    optimizer = torch.optim.SGD([decay], lr=0.01)

    def step() -> Tensor:
        top, below = torch.zeros(4, 32, device=device), torch.zeros(4, 32, device=device)
        rate, outputs = torch.exp(-torch.exp(decay)), []
        for key, value in zip(keys, values, strict=True):
            weight = torch.exp(key)
            top, below = rate * top + weight * value, rate * below + weight
            outputs.append(top / (below + 1e-6))
        loss = torch.stack(outputs).square().mean()
        return lessened(loss, optimizer)

    return step


def matching(device: str) -> Step:
    """Predictions matched with targets by a cost that the host solves, as DETR's loss does: one read in each step."""
    model, x, y = mlp(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> Tensor:
        predicted = model(x)
        cost = (predicted - y.t()).square().detach().cpu()
        rows, columns = (torch.as_tensor(each, device=device) for each in linear_sum_assignment(cost))
        loss = F.mse_loss(predicted[rows], y[columns])
        return lessened(loss, optimizer)

    return step


def newton(device: str) -> Step:
    """Square roots by Newton's method, until the largest change that Python reads is small."""
    numbers = torch.linspace(1, 9, 64).to(device)

    def step() -> Tensor:
        x, change = numbers.clone(), 1.0
        while change > 1e-6:
            new = 0.5 * (x + numbers / x)
            change = (new - x).abs().max().item()
            x = new
        return x.sum()

    return step


WORKLOADS: dict[str, Callable[[str], Step]] = {
    each.__name__: each for each in (tiny_sgd, lbfgs, one_by_one, averaged, autocast, recurrence, matching, newton)
}
READING = {"lbfgs", "matching", "newton"}


def contestants(name: str) -> dict[str, Step]:
    """A step of each contestant, the one of eager PyTorch first."""
    make = WORKLOADS[name]
    found = {"eager": make("cpu")}
    recorded = make("xla")

    def synced() -> Tensor:
        result = recorded()
        torch_xla.sync()
        return result

    found["recorded"] = synced
    if name not in READING:
        found["replay"] = torch_xla.compile(make("xla"), replay=True)
    return found


def measured(name: str, rounds: int, warm_up: int = 12) -> dict[str, list[float]]:
    """Seconds a step of each contestant, by round; raises if they do not begin with the same losses."""
    steps = contestants(name)
    expected: list[float] = []
    for contestant, step in steps.items():
        losses = [step().item() for _ in range(3)]
        expected = expected or losses
        tolerance = 2e-2 if name == "autocast" else 1e-4
        torch.testing.assert_close(losses, expected, rtol=tolerance, atol=1e-6, msg=f"{name}, {contestant}: {losses}")
        for _ in range(warm_up):
            step()
    found: dict[str, list[float]] = {contestant: [] for contestant in steps}
    for _ in range(rounds):
        for contestant, step in steps.items():
            torch_xla.sync(wait=True)
            started = time.perf_counter()
            for _ in range(STEPS):
                loss = step()
            loss.item()
            found[contestant].append((time.perf_counter() - started) / STEPS)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    rows = []
    with machine.watched() as disturbance:
        for name in args.only.split(","):
            seconds = measured(name, args.rounds)
            ratios = {
                contestant: median(a / b for a, b in zip(own, seconds["eager"], strict=True))
                for contestant, own in seconds.items()
            }
            title = (WORKLOADS[name].__doc__ or name).split("\n")[0].removesuffix(".").split(":")[0]
            cells = [f"{median(own) * 1e3:.2f}" for own in seconds.values()]
            told = [f"{ratios[each]:.2f}" for each in seconds if each != "eager"]
            rows.append([title, *cells, *[""] * (3 - len(cells)), *told, *[""] * (2 - len(told))])
            print(" | ".join(rows[-1]), flush=True)
    head = ["a step of", "eager, ms", "recorded, ms", "replay, ms", "recorded / eager", "replay / eager"]
    page.publish(args.write, HEADING, "small_programs", __doc__, page.table(head, rows), disturbance=disturbance)


if __name__ == "__main__":
    main()
