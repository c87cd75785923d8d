"""Measures tokens per second when text is written token by token, with a cache of keys and values.

    python -m benchmarks.decode [--models gpt2_like] [--dtypes float32] [--batches 1,8] [--rounds 5]
                                [--contestants eager,inductor,ours,openxla,replay,jax] [--write docs/benchmarks.md]

Texts of 128 tokens, the most likely token each time; nothing is read on the host before a text ends. All contestants
take turns in one process; a ratio is the median of the turns' ratios. JAX is there for the GPT-2-like model alone.
"""

import argparse
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from statistics import median

import jax
import torch
from tqdm import tqdm

import torch_xla
from benchmarks import machine, page
from benchmarks.decoders import DECODERS, Decoder, GptDecoder
from benchmarks.jax_decoder import JaxDecoder

HEADING = "## Decoding"
LENGTH = 128


class Writer(ABC):
    """Writes texts with one model."""

    @abstractmethod
    def restart(self) -> None:
        """Begins a new text."""

    @abstractmethod
    def token(self) -> None:
        """One more token."""

    @abstractmethod
    def wait(self) -> None:
        """Returns when all is written."""


class OnDevice(Writer):
    """A PyTorch model on some device, as it is or compiled."""

    def __init__(self, build: Callable[[], Decoder], dtype: torch.dtype, device: str) -> None:
        torch.manual_seed(0)
        self.model = build().to(dtype).to(device)
        self.forward: Callable[[], torch.Tensor] = self.model

    def restart(self) -> None:
        self.model.restart()

    def token(self) -> None:
        self.forward()

    def wait(self) -> None:
        pass


class Eager(OnDevice):
    """On the CPU."""

    def __init__(self, build: Callable[[], Decoder], dtype: torch.dtype) -> None:
        super().__init__(build, dtype, "cpu")


class Inductor(Eager):
    """On the CPU, compiled by inductor."""

    def __init__(self, build: Callable[[], Decoder], dtype: torch.dtype) -> None:
        super().__init__(build, dtype)
        self.forward = torch.compile(self.model)


class Ours(OnDevice):
    """On the xla device, recorded token by token."""

    def __init__(self, build: Callable[[], Decoder], dtype: torch.dtype) -> None:
        super().__init__(build, dtype, "xla")

    def token(self) -> None:
        self.forward()
        torch_xla.sync()

    def wait(self) -> None:
        torch_xla.sync(wait=True)


class OpenXla(Ours):
    """On the xla device, compiled by `torch.compile(backend="openxla")`."""

    def __init__(self, build: Callable[[], Decoder], dtype: torch.dtype) -> None:
        super().__init__(build, dtype)
        self.forward = torch.compile(self.model, backend="openxla")

    def token(self) -> None:
        self.forward()


class Replay(Ours):
    """On the xla device, replayed."""

    def __init__(self, build: Callable[[], Decoder], dtype: torch.dtype) -> None:
        super().__init__(build, dtype)
        self.forward = torch_xla.compile(lambda: self.model(), replay=True)

    def token(self) -> None:
        self.forward()


class Jax(Writer):
    """By hand in JAX."""

    def __init__(self, build: Callable[[], Decoder], dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        model = build()
        assert isinstance(model, GptDecoder)
        self.decoder = JaxDecoder(model, str(dtype).removeprefix("torch."))

    def restart(self) -> None:
        self.decoder.restart()

    def token(self) -> None:
        self.decoder.step()

    def wait(self) -> None:
        jax.block_until_ready(self.decoder.state)


WRITERS: dict[str, Callable[[Callable[[], Decoder], torch.dtype], Writer]] = {
    "eager": Eager,
    "inductor": Inductor,
    "ours": Ours,
    "openxla": OpenXla,
    "replay": Replay,
    "jax": Jax,
}


def write(writer: Writer, tokens: int = LENGTH) -> float:
    """Seconds for one text."""
    writer.restart()
    writer.wait()
    started = time.perf_counter()
    for _ in range(tokens):
        writer.token()
    writer.wait()
    return time.perf_counter() - started


def measure(model: str, dtype: str, batch: int, names: list[str], rounds: int) -> dict[str, list[float]]:
    """Tokens per second of every turn, by contestant."""
    build = lambda: DECODERS[model](batch, LENGTH)  # noqa: E731
    names = [name for name in names if name != "jax" or model == "gpt2_like"]
    torch._dynamo.reset()
    writers = {name: WRITERS[name](build, getattr(torch, dtype)) for name in names}
    for writer in tqdm(writers.values(), desc=f"{model} {dtype} {batch}: warming up", leave=False, disable=None):
        write(writer, 8)
        write(writer, 8)
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, writer in writers.items():
            found[name].append(batch * LENGTH / write(writer))
    return found


def ratio(found: dict[str, list[float]], one: str, *others: str) -> str:
    """How many times as many tokens `one` writes as the best of `others`: the median of the turns."""
    known = [found[other] for other in others if other in found]
    if one not in found or not known:
        return ""
    return f"{median(a / max(b) for a, *b in zip(found[one], *known, strict=True)):.2f}"


def table(results: dict[str, dict[str, list[float]]], names: list[str]) -> str:
    """One row for each model; tokens per second, and how many times those of others."""
    header = ["tokens per second", *names, "ours / eager", "replay / eager, inductor", "replay / jax", "openxla / jax"]
    rows = []
    for title, found in results.items():
        row = [f"{median(found[name]):.0f}" if name in found else "" for name in names]
        row += [ratio(found, "ours", "eager"), ratio(found, "replay", "eager", "inductor")]
        rows.append([title, *row, ratio(found, "replay", "jax"), ratio(found, "openxla", "jax")])
    return page.table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(DECODERS))
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--contestants", default="eager,inductor,ours,openxla,replay,jax")
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
    text = f"{table(results, names)}\n\nOther processes used {disturbance.share:.0%} of the machine's cores meanwhile."
    print(f"{machine.description()}\n\n{text}")
    if args.write:
        page.put(
            args.write, HEADING, f"`python -m benchmarks.decode`: {__doc__.split(chr(10) * 2)[2].strip()}\n\n{text}"
        )


if __name__ == "__main__":
    main()
