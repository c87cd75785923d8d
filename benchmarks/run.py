"""Measures training steps: eager PyTorch on the CPU, the xla device, and others if asked for.

    python -m benchmarks.run [--workloads encoder,gpt2_like] [--contestants eager,ours,jax,inductor,openxla,replay]
                             [--rounds 7] [--dropout 0] [--memory] [--write docs/benchmarks.md]

A step is forward, loss, zero_grad, backward and AdamW, on one batch. "step" is the time of one step among many that
are sent off one after the other, with a wait at the end. "recording" is the time until a step can be sent off while
the device is idle. All contestants take turns in one process, and a ratio is the median of the ratios of the turns,
so that a machine that is slower for a while is so for all. Inductor compiles the model but not the optimizer, and
takes minutes to do so. JAX is there for the encoder alone.
"""

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import matplotlib
from matplotlib import pyplot
from tqdm import tqdm

from benchmarks import machine, memory
from benchmarks.contestants import CONTESTANTS, Compiles, Contestant, Ours
from benchmarks.models import WORKLOADS

WARM_UP_STEPS = 5
SECONDS_PER_TURN = 0.6
NAMES = {
    "eager": "eager",
    "inductor": "inductor",
    "ours": "ours",
    "openxla": "openxla",
    "replay": "replay",
    "jax": "JAX",
}


@dataclass
class Measured:
    """Milliseconds of a step in every turn, by contestant."""

    steps: dict[str, list[float]]
    disturbance: list[float] = field(default_factory=list)
    recording: list[float] = field(default_factory=list)
    compiles: Compiles = field(default_factory=lambda: Compiles(0, 0.0))

    def step(self, name: str) -> float | None:
        return median(self.steps[name]) if name in self.steps else None

    def ratio(self, times: list[float]) -> float | None:
        """To eager's step: the median over the turns."""
        if not times or "eager" not in self.steps:
            return None
        return median(a / b for a, b in zip(times, self.steps["eager"], strict=True))


def timed(contestant: Contestant, steps: int) -> float:
    """Milliseconds of a step, when `steps` of them follow each other."""
    contestant.step()
    contestant.wait()
    started = time.perf_counter()
    for _ in range(steps):
        contestant.step()
    contestant.wait()
    return (time.perf_counter() - started) / steps * 1e3


def timed_recording(ours: Ours, steps: int) -> float:
    """Milliseconds to record a step while the device is idle: the median of `steps`."""
    times = []
    for _ in range(steps):
        ours.wait()
        started = time.perf_counter()
        ours.record()
        times.append(time.perf_counter() - started)
    ours.wait()
    return median(times) * 1e3


def measure(workload: str, names: Sequence[str], rounds: int, dropout: float | None) -> Measured:
    chosen = WORKLOADS[workload]
    rate = chosen.dropout if dropout is None else dropout
    names = [name for name in names if name != "jax" or workload == "encoder"]
    before = Compiles.so_far()
    contestants = {name: CONTESTANTS[name](chosen, rate) for name in names}
    turns = {}
    for name, contestant in tqdm(contestants.items(), desc=f"{workload}: warming up", leave=False):
        for _ in range(WARM_UP_STEPS):
            contestant.step()
        contestant.wait()
        turns[name] = min(50, max(3, round(SECONDS_PER_TURN * 1e3 / timed(contestant, 2))))
    measured = Measured({name: [] for name in names}, compiles=Compiles.so_far() - before)
    for _ in tqdm(range(rounds), desc=f"{workload}: measuring", leave=False):
        with machine.watched() as disturbance:
            for name, contestant in contestants.items():
                measured.steps[name].append(timed(contestant, turns[name]))
                if name == "ours" and isinstance(contestant, Ours):
                    measured.recording.append(timed_recording(contestant, min(10, turns[name])))
        measured.disturbance.append(disturbance.share)
    return measured


def cell(number: float | None, form: str = ".1f") -> str:
    return "" if number is None else format(number, form)


def table(results: dict[str, Measured], names: Sequence[str]) -> str:
    others = [name for name in ("inductor", "openxla", "replay", "jax") if name in names]
    header = ["model", "eager, ms", *(f"{NAMES[name]}, ms" for name in others)]
    header += ["ours, ms", "ours / eager", "recording, ms", "recording / eager", "compile, s", "compiles"]
    lines = [f"| {' | '.join(header)} |", "|---|" + "--:|" * (len(header) - 1)]
    for workload, measured in results.items():
        row = [WORKLOADS[workload].title, cell(measured.step("eager"))]
        row += [cell(measured.step(name)) for name in others]
        if "ours" in names:
            row += [cell(measured.step("ours")), cell(measured.ratio(measured.steps["ours"]), ".2f")]
            row += [cell(median(measured.recording)), cell(measured.ratio(measured.recording), ".2f")]
            row += [f"{measured.compiles.seconds:.1f}", str(measured.compiles.count)]
        else:
            row += [""] * 6
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def picture(results: dict[str, Measured], names: Sequence[str], path: Path) -> None:
    """A group of bars for each model: the step's time by contestant, eager being 1."""
    figure, axes = pyplot.subplots(figsize=(1.5 + 1.4 * len(results), 4), layout="constrained")
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        shown = [(at, measured.ratio(measured.steps.get(name, []))) for at, measured in enumerate(results.values())]
        heights = [ratio or 0.0 for _, ratio in shown]
        bars = axes.bar([at + (index - (len(names) - 1) / 2) * width for at, _ in shown], heights, width)
        bars.set_label(NAMES[name])
        axes.bar_label(bars, [cell(ratio, ".2f") for _, ratio in shown], fontsize=7)
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set_xticks(range(len(results)), list(results))
    axes.set(ylabel="time of a training step, eager = 1", title="Training steps on the CPU: lower is better")
    axes.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def report(results: dict[str, Measured], names: Sequence[str], used: str, image: str | None) -> str:
    disturbance = median(share for measured in results.values() for share in measured.disturbance)
    parts = [
        "# Benchmarks",
        f"Written by `{used}`; `benchmarks/run.py` says what is measured and how.",
        f"Machine: {machine.description()}. Other processes used {disturbance:.0%} of the cores meanwhile. The times "
        "are medians over the turns that all contestants take; a ratio is the median of the turns' ratios. The last "
        "two columns count the programs of every contestant on xla.",
        table(results, names),
    ]
    if image:
        parts.append(f"![Time of a training step by model and contestant]({image})")
    return "\n\n".join(parts) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="names from benchmarks/models.py")
    parser.add_argument("--contestants", default="eager,ours,jax", help=f"some of {', '.join(CONTESTANTS)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dropout", type=float, help="for every model; otherwise each has its own")
    parser.add_argument("--memory", action="store_true", help="peak memory of the GPT-2-like model too")
    parser.add_argument("--write", type=Path, help="a Markdown file; the picture goes beside it")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    matplotlib.use("agg")
    machine.confine()
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""  # everything is compiled here, whatever was before
    names = args.contestants.split(",")
    chosen = args.workloads.split(",")
    used = f"python -m benchmarks.run --contestants {args.contestants} --rounds {args.rounds}"
    results = {workload: measure(workload, names, args.rounds, args.dropout) for workload in chosen}
    image = args.write.with_suffix(".png") if args.write else None
    text = report(results, names, used, image.name if image else None)
    if args.memory:
        measured = memory.measure_apart("gpt2_like", ["eager", "ours"])
        text += f"\n## Peak memory\n\n{memory.table('gpt2_like', measured)}\n"
    print(text)
    if args.write and image:
        args.write.write_text(text)
        picture(results, names, image)


if __name__ == "__main__":
    main()
