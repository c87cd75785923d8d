"""Finds why a small multimodal transformer trains slowly: its attention looks at values in every `forward`.

    python examples/early_evaluation.py [--steps 150]

The model answers questions ("is this a seven") about scikit-learn's handwritten digits: two encoders, one for patches
of the image and one for the words, and a decoder that reads both. To save a product, its attention asks with
`torch.equal` whether query, key and value are the same: an answer that Python needs at once, so that the recorded graph
is cut, compiled and run there, a dozen times a step. Results are right, and nothing says why it is slow.

This program trains it under PT_XLA_DEBUG_LEVEL=1, shows the lines that the tool names, trains the same with `is` in
place of `torch.equal`, and compares. The exit status is 1 if the tool does not find the lines with the right counts, if
it still finds them in the repaired model, if the losses differ, or if the repaired model is not faster.
"""

import argparse
import inspect
import json
import operator
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import torch_xla

WIDTH, HEADS = 32, 4
WORDS = ["is", "this", "a", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]

LOSS_BOUND = 1e-3

Same = Callable[[Tensor, Tensor], bool]
SAME: dict[str, Same] = {"equal": torch.equal, "is": operator.is_}


class Attention(nn.Module):
    """Multi-head attention with one product for those of query, key and value that are the same."""

    def __init__(self, same: Same) -> None:
        super().__init__()
        self.same = same
        self.projection = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weight, bias = self.projection.weight, self.projection.bias
        if self.same(query, key) and self.same(key, value):
            projected = F.linear(query, weight, bias).chunk(3, -1)
        elif self.same(key, value):
            both = F.linear(key, weight[WIDTH:], bias[WIDTH:])
            projected = F.linear(query, weight[:WIDTH], bias[:WIDTH]), *both.chunk(2, -1)
        else:
            parts = zip((query, key, value), weight.chunk(3), bias.chunk(3), strict=True)
            projected = tuple(F.linear(x, w, b) for x, w, b in parts)
        heads = [x.unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in projected]
        return self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A layer of a transformer; with `memory`, one of a decoder."""

    def __init__(self, same: Same, reads_memory: bool = False) -> None:
        super().__init__()
        self.attention = Attention(same)
        self.memory = Attention(same) if reads_memory else None
        self.wide = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        own = self.norms[0](x)
        x = x + self.attention(own, own, own)
        if self.memory is not None and memory is not None:
            x = x + self.memory(self.norms[1](x), memory, memory)
        return x + self.wide(self.norms[2](x))


class Answerer(nn.Module):
    """Answers a question about an image."""

    def __init__(self, same: Same, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, 2, stride=2)
        self.words = nn.Embedding(len(WORDS), WIDTH)
        self.image_places = nn.Parameter(torch.randn(16, WIDTH) / 8)
        self.word_places = nn.Parameter(torch.randn(4, WIDTH) / 8)
        self.image_encoder = nn.ModuleList(Layer(same) for _ in range(layers))
        self.text_encoder = nn.ModuleList(Layer(same) for _ in range(layers))
        self.task = nn.Parameter(torch.randn(1, WIDTH) / 8)
        self.decoder = Layer(same, reads_memory=True)
        self.answer = nn.Linear(WIDTH, 2)

    def forward(self, images: Tensor, questions: Tensor) -> Tensor:
        seen = self.patches(images).flatten(2).transpose(1, 2) + self.image_places
        read = self.words(questions) + self.word_places
        for layer in self.image_encoder:
            seen = layer(seen)
        for layer in self.text_encoder:
            read = layer(read)
        task = self.task.expand(len(images), -1, -1)
        return self.answer(self.decoder(task, torch.cat([seen, read], 1)).squeeze(1))


def questions_about(digits: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A question about each digit, to which every second answer is yes, and the answers."""
    yes = torch.randint(2, digits.shape, generator=generator)
    others = (digits + torch.randint(1, 10, digits.shape, generator=generator)) % 10
    named = torch.where(yes == 1, digits, others) + WORDS.index("zero")
    return torch.stack([*(torch.full_like(named, word) for word in range(3)), named], 1), yes


def train(comparison: str, steps: int, layers: int) -> None:
    """Trains on the xla device and prints the losses of the first steps and the updates per second as JSON."""
    torch.manual_seed(0)
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    digits = torch.tensor(data.target)
    generator = torch.Generator().manual_seed(0)
    model = Answerer(SAME[comparison], layers).to("xla")
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses, started = [], 0.0
    for step in range(steps):
        if step == steps // 3:  # by then everything is compiled
            torch_xla.sync(wait=True)
            started = time.perf_counter()
        chosen = torch.randint(len(images), (64,), generator=generator)
        questions, answers = questions_about(digits[chosen], generator)
        logits = model(images[chosen].to("xla"), questions.to("xla"))
        loss = F.cross_entropy(logits, answers.to("xla"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
        losses.append(loss.detach())
    torch_xla.sync(wait=True)
    seconds = time.perf_counter() - started
    values = torch.stack(losses).tolist()
    print(json.dumps({"losses": values, "updates per second": (steps - steps // 3) / seconds}))


@dataclass(frozen=True)
class Study:
    """The results of one training, and the tool's report on it."""

    losses: list[float]
    speed: float
    summary: str
    found: dict[int, int]  # line of this file → how often `equal` cut the graph there


def study(comparison: str, steps: int, layers: int) -> Study:
    """Trains in a process of its own, as a user of the tool would."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "analysis.txt")
        settings = {"PT_XLA_DEBUG_LEVEL": "1", "PT_XLA_DEBUG_FILE": str(file)}
        command = [sys.executable, __file__, "--train", comparison, "--steps", str(steps), "--layers", str(layers)]
        done = subprocess.run(command, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True, check=True)
        told = file.read_text()
    result = json.loads(done.stdout.splitlines()[-1])
    summary = told[told.find("pt-xla-profiler: =") :] if "FRAME (count=" in told else ""
    frames = re.findall(
        r'FRAME \(count=(\d+)\):\n.*Unlowered Op: "equal"\n(?:.*Early evaluations.*\n)?.*\n.*  \w+ \((.+):(\d+)\)',
        summary,
    )
    found: dict[int, int] = {}
    for count, path, line in frames:
        assert Path(path).samefile(__file__), path
        found[int(line)] = found.get(int(line), 0) + int(count)
    return Study(result["losses"], result["updates per second"], summary, found)


def expected_counts(steps: int, layers: int) -> dict[int, int]:
    """The lines of this file in which the attention compares, and how often it must look at values there."""
    source, first = inspect.getsourcelines(Attention.forward)
    lines = [first + number for number, line in enumerate(source) if "self.same(" in line]
    # Every self-attention compares query with key and key with value. The attention to the encoders compares key with
    # value; its query and key differ in size, which needs no comparison of values.
    self_attentions = 2 * layers + 1
    return dict(zip(lines, (2 * self_attentions * steps, steps), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--layers", type=int, default=2, help="of each encoder")
    parser.add_argument("--fast", action="store_true", help="a few steps, as the tests run it")
    parser.add_argument("--train", choices=SAME, help="train only, with this comparison in the attention")
    args = parser.parse_args()
    steps, layers = (6, 1) if args.fast else (args.steps, args.layers)
    if args.train:
        train(args.train, steps, layers)
        return 0
    before, after = study("equal", steps, layers), study("is", steps, layers)
    print(f"--- attention compares with torch.equal: {before.speed:.1f} updates per second; the tool says ---")
    print(before.summary)
    print(f"--- attention compares with `is`: {after.speed:.1f} updates per second; the tool says ---")
    print(after.summary or "(nothing of `equal`)\n")
    difference = max(abs(a - b) for a, b in zip(before.losses, after.losses, strict=True))
    print(f"largest difference of a loss {difference:.1e}; last loss {after.losses[-1]:.3f}")
    expected = expected_counts(steps, layers)
    missed = []
    if before.found != expected:
        missed.append(f"the tool found {before.found} at these lines, there were {expected}")
    if after.found:
        missed.append(f"the repaired model still compares: {after.found}")
    if not difference <= LOSS_BOUND:
        missed.append(f"the losses differ by {difference:.1e} > {LOSS_BOUND:.0e}")
    if not args.fast and not after.speed > before.speed:
        missed.append(f"the repaired model makes {after.speed:.1f} updates per second, before {before.speed:.1f}")
    for bound in missed:
        print(f"missed: {bound}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
