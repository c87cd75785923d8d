"""Measures steps: eager PyTorch, inductor, the xla device in its ways, and the same model by hand in JAX.

    python -m benchmarks.run [--workloads encoder,gpt2_like] [--modes training,inference]
                             [--dtypes float32,bfloat16] [--batches 1,8] [--rounds 5] [--dropout 0]
                             [--contestants eager,inductor,ours,openxla,replay,jax] [--title "Hugging Face"]
                             [--write docs/benchmarks.md]

A step in training is forward, loss, zero_grad, backward and AdamW on one batch; in inference, the forward pass.
bfloat16 is autocast in training and the dtype of the weights in inference. A step's time is that of one among many that
are sent off one after the other, with a wait at the end. "recording" is the time until a step can be sent off while the
device is idle. All contestants take turns in one process, and a ratio is the median of the ratios of the turns, so that
a machine that is slower for a while is so for all. Inductor compiles the model but not the optimizer.
"""

import argparse
import gc
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import matplotlib
import torch
from matplotlib import pyplot
from tqdm import tqdm

from benchmarks import hugging_face, machine, page
from benchmarks.contestants import CONTESTANTS, Compiles, Contestant, Ours, Setting, in_turns, ratio
from benchmarks.models import WORKLOADS, Workload

WARM_UP_STEPS = 5
SECONDS_PER_TURN = 0.6
# Bars longer than this, relative to eager's time, are cut in the pictures; their number is shown.
HIGHEST_BAR = 2.0
NAMES = {
    "eager": "eager",
    "inductor": "inductor",
    "ours": "recorded",
    "openxla": "openxla",
    "compiled": "compiled",
    "replay": "replayed",
    "jax": "JAX",
}
# The comparisons of a table: a contestant with the best of others.
COMPARED = (
    ("ours", "eager", "inductor"),
    ("compiled", "eager"),
    ("replay", "eager", "inductor"),
    ("replay", "jax"),
)
OF_HUGGING_FACE = hugging_face.workloads()
ALL = {**WORKLOADS, **OF_HUGGING_FACE}
GROUPS = {"all": WORKLOADS, "hugging_face": OF_HUGGING_FACE}


@dataclass
class Measured:
    """Milliseconds of a step in every turn, by contestant."""

    steps: dict[str, list[float]] = field(default_factory=dict)
    disturbance: float = 0.0
    recording: list[float] = field(default_factory=list)
    compiles: Compiles = field(default_factory=lambda: Compiles(0, 0.0))

    def step(self, name: str) -> float | None:
        return median(self.steps[name]) if name in self.steps else None

    def ratio(self, one: str, *others: str) -> float | None:
        """To the best of the others: the median over the turns."""
        return ratio({"recording": self.recording, **self.steps}, one, others, min)


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
        kept = ours.record()
        times.append(time.perf_counter() - started)
        ours.wait()
        del kept
    return median(times) * 1e3


def measure(workload: Workload, names: Sequence[str], rounds: int, dropout: float | None, setting: Setting) -> Measured:
    rate = workload.dropout if dropout is None else dropout
    names = [name for name in names if name != "jax" or workload not in OF_HUGGING_FACE.values()]
    gc.collect()
    torch._dynamo.reset()
    before = Compiles.so_far()
    contestants = {name: CONTESTANTS[name](workload, rate, setting) for name in names}
    turns = {}
    for name, contestant in tqdm(contestants.items(), desc=f"{workload.model}: warming up", leave=False, disable=None):
        for _ in range(max(WARM_UP_STEPS, contestant.settles)):
            contestant.step()
        contestant.wait()
        turns[name] = min(50, max(3, round(SECONDS_PER_TURN * 1e3 / timed(contestant, 2))))
    measured = Measured(compiles=Compiles.so_far() - before)

    def turn(name: str, contestant: Contestant) -> float:
        milliseconds = timed(contestant, turns[name])
        if name == "ours" and isinstance(contestant, Ours):
            measured.recording.append(timed_recording(contestant, min(10, turns[name])))
        return milliseconds

    with machine.watched() as disturbance:
        measured.steps = in_turns(contestants, turn, rounds, workload.model)
    measured.disturbance = disturbance.share
    return measured


def cell(number: float | None, form: str = ".2f") -> str:
    return "" if number is None else format(number, form)


def table(results: dict[str, Measured], names: Sequence[str]) -> str:
    """A row for each model: a step's time by contestant, ratios, recording and compilation."""
    compared = [(one, *others) for one, *others in COMPARED if one in names and set(others) & set(names)]
    header = ["model", *(f"{NAMES[name]}, ms" for name in names)]
    header += [f"{NAMES[one]} / {' or '.join(NAMES[o] for o in others if o in names)}" for one, *others in compared]
    header += ["recording, ms", "compile, s"]
    rows = []
    for title, measured in results.items():
        row = [title, *(cell(measured.step(name), ".1f") for name in names)]
        row += [cell(measured.ratio(one, *others)) for one, *others in compared]
        recording = median(measured.recording) if measured.recording else None
        rows.append([*row, cell(recording, ".1f"), f"{measured.compiles.seconds:.1f}"])
    return page.table(header, rows)


def in_lines(title: str) -> str:
    """A title in narrow lines: broken before brackets, and at commas but for those within."""
    return re.sub(r", (?![^(]*\))", "\n", title).replace("(", "\n(")


def picture(tables: dict[str, dict[str, Measured]], names: Sequence[str], path: Path) -> None:
    """A row of bars for each table: the step's time by model and contestant, eager being 1."""
    most = max(len(results) for results in tables.values())
    size = (1.5 + 1.4 * max(4, most), 3.2 * len(tables))
    figure, rows = pyplot.subplots(len(tables), squeeze=False, figsize=size, layout="constrained")
    for axes, (title, results) in zip(rows[:, 0], tables.items(), strict=True):
        width = 0.8 / len(names)
        for index, name in enumerate(names):
            ratios = [measured.ratio(name, "eager") or 0.0 for measured in results.values()]
            places = [at + (index - (len(names) - 1) / 2) * width for at in range(len(results))]
            bars = axes.bar(places, [min(each, HIGHEST_BAR) for each in ratios], width, label=NAMES[name])
            numbers = [f"{each:.2f}" if each else "" for each in ratios]
            axes.bar_label(bars, numbers, fontsize=6, rotation=90, padding=2)
        axes.axhline(1, color="grey", linewidth=0.8, zorder=0)
        axes.set_ylim(0, HIGHEST_BAR + 0.5)
        axes.set_xticks(range(len(results)), [in_lines(title) for title in results], fontsize=7)
        axes.set(ylabel="time of a step, eager = 1", title=f"{title}: lower is better")
    rows[0, 0].legend(ncols=len(names), fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def heading(args: argparse.Namespace, mode: str, dtype: str) -> str:
    of = f"{args.title}, {mode}" if args.title else mode.capitalize()
    return f"## {of}, {dtype}{', by batch' if args.batches else ''}"


def measure_table(args: argparse.Namespace, mode: str, dtype: str) -> dict[str, Measured]:
    """All rows of one table, by title."""
    results = {}
    for name in args.workloads.split(","):
        for batch in [int(each) for each in args.batches.split(",")] if args.batches else [None]:
            title = ALL[name].title if batch is None else f"{ALL[name].model}, batch {batch}"
            setting = Setting(mode, dtype, batch)
            results[title] = measure(ALL[name], args.contestants.split(","), args.rounds, args.dropout, setting)
    return results


def told(measured: dict[str, Measured], call: str) -> str:
    """Return the text above a table."""
    disturbance = machine.Disturbance(median(each.disturbance for each in measured.values()))
    return f"`{call}` on {machine.description()}. {disturbance.told()}".strip()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--workloads", default="mlp,encoder,gpt2_like", help=f"some of {', '.join(ALL)}; or {' or '.join(GROUPS)}"
    )
    parser.add_argument("--contestants", default="eager,ours,openxla,replay,jax", help=f"of {', '.join(CONTESTANTS)}")
    parser.add_argument("--modes", default="training,inference")
    parser.add_argument("--dtypes", default="float32", help="float32,bfloat16")
    parser.add_argument("--batches", help="numbers of examples; otherwise each model's own")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dropout", type=float, help="for every model; otherwise each has its own")
    parser.add_argument("--title", default="", help="what the tables' headings begin with, where it is not the mode")
    parser.add_argument("--picture", default="", help="what the picture's name ends in, if there are several")
    parser.add_argument("--write", type=Path, help="a Markdown file: each table becomes a section of it")
    args = parser.parse_args()
    args.chosen = args.workloads
    args.workloads = ",".join(GROUPS.get(args.workloads, {args.workloads: None}))
    if not args.workloads:
        parser.error("`transformers` is not installed: pip install transformers")
    return args


def main() -> None:
    args = arguments()
    matplotlib.use("agg")
    machine.confine()
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""  # everything is compiled here, whatever was before
    tables = {}
    for mode in args.modes.split(","):
        for dtype in args.dtypes.split(","):
            results = tables[f"{mode}, {dtype}"] = measure_table(args, mode, dtype)
            text = table(results, args.contestants.split(","))
            print(f"{heading(args, mode, dtype)}\n\n{text}\n")
            if args.write:
                chosen = f"--workloads {args.chosen} --contestants {args.contestants} --modes {mode} --dtypes {dtype}"
                batches = f" --batches {args.batches}" if args.batches else ""
                call = f"python -m benchmarks.run {chosen}{batches} --rounds {args.rounds}"
                page.put(args.write, heading(args, mode, dtype), f"{told(results, call)}\n\n{text}")
    if args.write and not args.batches:
        image = args.write.with_stem("_".join(filter(None, (args.write.stem, args.picture)))).with_suffix(".png")
        picture(tables, args.contestants.split(","), image)
        title = "## The tables in one picture" + (f": {args.picture.replace('_', ' ')}" if args.picture else "")
        page.put(args.write, title, f"![Time of a step by model and contestant]({image.name})")


if __name__ == "__main__":
    main()
