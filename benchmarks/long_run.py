"""Trains the encoder for a long time and looks whether anything grows: memory, cached programs, the time of a step.

    python -m benchmarks.long_run [--steps 20000] [--write docs/benchmarks.md]

A new batch from the CPU and another learning rate in every step, the loss read every 100 steps, an evaluation every
500, a checkpoint every 1,000. The table has a row for each quarter of the run.
"""

import argparse
import gc
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import jax
import matplotlib
import torch
import torch.nn.functional as F
from matplotlib import pyplot
from tqdm import tqdm

import torch_xla
import torch_xla.core.xla_model as xm
from benchmarks import machine, page
from benchmarks.contestants import Compiles
from benchmarks.memory import resident
from benchmarks.models import Encoder
from torch_xla._engine.compile import program_cache

HEADING = "## The long run"


@dataclass(frozen=True)
class Intervals:
    """After how many steps each thing happens."""

    loss: int = 100
    evaluation: int = 500
    checkpoint: int = 1000


@dataclass(frozen=True)
class Row:
    """The measurements at the end of some steps."""

    step: int
    milliseconds: float  # of a step: the median of these
    host: float  # milliseconds of the recording thread in it, which other processes disturb less
    mebibytes: float  # that the process holds
    programs: int  # in the cache
    compiles: int  # since the start
    buffers: int  # alive on the device
    loss: float


class Run:
    """A training run of the encoder."""

    def __init__(self, steps: int) -> None:
        torch.manual_seed(0)
        self.model = Encoder(0.1).to("xla")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        self.data = torch.Generator().manual_seed(1)
        self.loss = torch.zeros((), device="xla")

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Sequences whose class is the one of ten directions their mean is nearest to."""
        x = torch.randn(4, 16, 64, generator=self.data)
        return x.to("xla"), x.mean(1)[:, :10].argmax(1).to("xla")

    def step(self) -> None:
        """Trains on a new batch."""
        x, labels = self.batch()
        self.loss = F.cross_entropy(self.model(x), labels)
        self.optimizer.zero_grad()
        self.loss.backward()
        self.optimizer.step()
        self.schedule.step()
        torch_xla.sync()

    def evaluate(self) -> float:
        """The share of 64 new sequences that are classified rightly."""
        self.model.eval()
        right = torch.zeros((), device="xla")
        with torch.no_grad():
            for _ in range(16):
                x, labels = self.batch()
                right += (self.model(x).argmax(1) == labels).sum()
                torch_xla.sync()
        self.model.train()
        return right.item() / 64

    def save(self, folder: Path) -> None:
        """Write a checkpoint, replacing the last one."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        xm.save({**state, "schedule": self.schedule.state_dict()}, folder / "checkpoint.pt")


def run(steps: int, every: Intervals) -> list[Row]:
    """Train for this number of steps; return a row for each checkpoint."""
    training, rows = Run(steps), []
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""  # so that what is compiled is counted
    before = Compiles.so_far()
    times: list[float] = []
    hosts: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for index in tqdm(range(1, steps + 1), desc="training", mininterval=10, leave=False, disable=None):
            started, begun = time.perf_counter(), time.thread_time()
            training.step()
            times.append(time.perf_counter() - started)
            hosts.append(time.thread_time() - begun)
            if index % every.loss == 0:
                loss = training.loss.item()
            if index % every.evaluation == 0:
                training.evaluate()
            if index % every.checkpoint == 0:
                training.save(Path(folder))
                compiles = (Compiles.so_far() - before).count
                gc.collect()  # collect objects without references
                buffers = len(jax.live_arrays())
                step, host = median(times) * 1e3, median(hosts) * 1e3
                rows.append(Row(index, step, host, resident("VmRSS"), program_cache.size(), compiles, buffers, loss))
                hosts.clear()
                times.clear()
    return rows


def table(rows: list[Row]) -> str:
    header = [
        "step",
        "a step, ms",
        "the host's part, ms",
        "memory, MiB",
        "programs in the cache",
        "compiled so far",
        "buffers alive",
        "loss",
    ]
    cells = [
        [
            f"{r.step:,}",
            f"{r.milliseconds:.2f}",
            f"{r.host:.2f}",
            f"{r.mebibytes:.0f}",
            f"{r.programs}",
            f"{r.compiles}",
        ]
        for r in rows
    ]
    return page.table(header, [[*row, f"{r.buffers}", f"{r.loss:.3f}"] for row, r in zip(cells, rows, strict=True)])


def picture(rows: list[Row], path: Path) -> None:
    """Step time, memory and programs over the run."""
    figure, axes = pyplot.subplots(1, 3, figsize=(10, 2.6), layout="constrained")
    for ax, name, label in zip(
        axes, ("milliseconds", "mebibytes", "programs"), ("a step, ms", "memory, MiB", "programs"), strict=True
    ):
        ax.plot([row.step for row in rows], [getattr(row, name) for row in rows])
        ax.set(xlabel="step", ylabel=label)
        ax.set_ylim(bottom=0)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--write", type=Path, help="a Markdown file: the table becomes a section of it")
    args = parser.parse_args()
    matplotlib.use("agg")
    machine.confine()
    with machine.watched() as disturbance:
        rows = run(args.steps, Intervals())
    parts = [table(rows[len(rows) // 4 - 1 :: max(1, len(rows) // 4)])]
    if args.write:
        image = args.write.with_name("long_run.png")
        picture(rows, image)
        parts.append(f"![Step time, memory and programs]({image.name})")
    page.publish(args.write, HEADING, "long_run", __doc__, *parts, disturbance=disturbance)


if __name__ == "__main__":
    main()
