"""Measures tokens per second when text is written token by token, with a cache of keys and values.

    python -m benchmarks.decode [--models gpt2_like] [--dtypes float32] [--batches 1,8] [--rounds 5]
                                [--contestants eager,inductor,ours,openxla,replay,loop,jax] [--write docs/benchmarks.md]

Texts of 128 tokens, always the most likely token; the host reads nothing before a text ends. "loop" writes the whole
text in one program, by `scan`. All contestants take turns in one process, and a ratio is the median of the turns'
ratios. Only the GPT-2-like model exists in JAX.
"""

import argparse
import os
import time
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from statistics import median

import jax
import torch
from tqdm import tqdm

import torch_xla
from benchmarks import machine, page
from benchmarks.contestants import CALLED, CONTESTANTS, Contestant, in_turns, ratio
from benchmarks.decoders import DECODERS, Decoder, GptDecoder
from benchmarks.jax_decoder import JaxDecoder
from torch_xla.experimental.scan import scan

HEADING = "## Decoding"
LENGTH = 128
# How many times as many tokens the first writes as the best of the others.
COMPARED = (
    ("ours", "eager"),
    ("replay", "eager", "inductor"),
    ("loop", "eager", "inductor"),
    ("replay", "jax"),
)


class Writer(Contestant):
    """Writes texts with one model: a step is one more token."""

    @abstractmethod
    def restart(self) -> None:
        """Begins a new text."""

    def write(self, tokens: int) -> None:
        """Generate this number of further tokens."""
        for _ in range(tokens):
            self.step()


class Torch(Writer):
    """A PyTorch model on the CPU or the xla device, in one of the ways of running it."""

    def __init__(self, way: str, build: Callable[[], Decoder], dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.is_ours = way not in ("eager", "inductor")
        self.is_recorded = way == "ours"
        self.model = build().to(dtype).to("xla" if self.is_ours else "cpu")
        # A replay is of a function.
        self.forward = CALLED.get(way, lambda called: called)(self.model if way != "replay" else lambda: self.model())

    def restart(self) -> None:
        self.model.restart()

    def step(self) -> None:
        self.forward()
        if self.is_recorded:
            torch_xla.sync()

    def wait(self) -> None:
        if self.is_ours:
            torch_xla.sync(wait=True)


class Loop(Torch):
    """The xla device, all tokens by a loop in one program."""

    def __init__(self, way: str, build: Callable[[], Decoder], dtype: torch.dtype) -> None:
        super().__init__(way, build, dtype)
        self.once = lambda token, place: (self.model(), [])

    def write(self, tokens: int) -> None:
        with torch.no_grad():
            scan(self.once, self.model.token, self.model.places[:tokens], is_fn_pure=True)
        torch_xla.sync()


class Jax(Writer):
    """By hand in JAX."""

    def __init__(self, build: Callable[[], Decoder], dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        model = build()
        assert isinstance(model, GptDecoder)
        self.decoder = JaxDecoder(model, str(dtype).removeprefix("torch."))

    def restart(self) -> None:
        self.decoder.restart()

    def step(self) -> None:
        self.decoder.step()

    def wait(self) -> None:
        jax.block_until_ready(self.decoder.state)


def writer(name: str, build: Callable[[], Decoder], dtype: torch.dtype) -> Writer:
    if name == "jax":
        return Jax(build, dtype)
    return Loop(name, build, dtype) if name == "loop" else Torch(name, build, dtype)


def seconds(writer: Writer, tokens: int = LENGTH) -> float:
    """Seconds for one text."""
    writer.restart()
    writer.wait()
    started = time.perf_counter()
    writer.write(tokens)
    writer.wait()
    return time.perf_counter() - started


def measure(model: str, dtype: str, batch: int, names: list[str], rounds: int) -> dict[str, list[float]]:
    """Tokens per second of every turn, by contestant."""
    build = lambda: DECODERS[model](batch, LENGTH)  # noqa: E731
    names = [name for name in names if name != "jax" or model == "gpt2_like"]
    torch._dynamo.reset()
    writers = {name: writer(name, build, getattr(torch, dtype)) for name in names}
    title = f"{model} {dtype} {batch}"
    for each in tqdm(writers.values(), desc=f"{title}: warming up", leave=False, disable=None):
        for _ in range(2):
            seconds(each, LENGTH if isinstance(each, Loop) else 8)
    return in_turns(writers, lambda _, each: batch * LENGTH / seconds(each), rounds, title)


def table(results: dict[str, dict[str, list[float]]], names: list[str]) -> str:
    """One row for each model; tokens per second, and how many times those of others."""
    header = ["tokens per second", *names, *(f"{one} / {' or '.join(others)}" for one, *others in COMPARED)]
    rows = []
    for title, found in results.items():
        row = [f"{median(found[name]):.0f}" if name in found else "" for name in names]
        ratios = [ratio(found, one, others, max) for one, *others in COMPARED]
        rows.append([title, *row, *("" if each is None else f"{each:.2f}" for each in ratios)])
    return page.table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(DECODERS))
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--contestants", default=",".join((*CONTESTANTS, "loop")))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path, help="a Markdown file: the table becomes a section of it")
    args = parser.parse_args()
    machine.confine()
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""
    names = args.contestants.split(",")
    results = {}
    with machine.watched() as disturbance:
        for model in args.models.split(","):
            for dtype in args.dtypes.split(","):
                for batch in args.batches.split(","):
                    title = f"{model}, {dtype}, batch {batch}"
                    results[title] = measure(model, dtype, int(batch), names, args.rounds)
    page.publish(args.write, HEADING, "decode", __doc__, table(results, names), disturbance=disturbance)


if __name__ == "__main__":
    main()
