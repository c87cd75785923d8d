"""Writes text with a small decoder in three ways: token by token, replayed, and as one program; compares them.

    python examples/decoding.py [--fast]

The model learns to continue words of a made-up language, in which each letter decides the next. Then it writes:
token by token with a read of each, which is how most code is written; with `torch_xla.compile`, which replays the step;
and with `torch_xla.experimental.decoding.decode`, where the device decides when a text ends. All three write the same.
"""

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_xla
from torch_xla.debug import metrics
from torch_xla.experimental.decoding import decode, sampling

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]
LETTERS, END, DEVICE = 32, 0, "xla"


class Block(nn.Module):
    """A decoder layer that reads keys and values of earlier tokens from a cache, and writes its own there."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, seen: Tensor, cache: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        qkv = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        cache = cache.index_copy(3, position, qkv[1:])
        mixed = F.scaled_dot_product_attention(qkv[0], cache[0], cache[1], attn_mask=seen)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.between(x)), cache


class Writer(nn.Module):
    """Logits of the next letters, of a whole text or of one more letter."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 3, length: int = 64) -> None:
        super().__init__()
        self.length, self.heads, self.size = length, heads, width // heads
        self.letters, self.places = nn.Embedding(LETTERS, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, LETTERS)

    def caches(self, batch: int, device: str) -> list[Tensor]:
        size = (2, batch, self.heads, self.length, self.size)
        return [torch.zeros(size, device=device) for _ in self.blocks]

    def forward(self, letters: Tensor, position: Tensor, caches: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        x = self.letters(letters) + self.places(position)
        seen = torch.arange(self.length, device=x.device) <= position[:, None]
        written = []
        for block, cache in zip(self.blocks, caches, strict=True):
            x, cache = block(x, seen, cache, position)
            written.append(cache)
        return self.head(x), written


def train(model: Writer, following: Tensor, steps: int, device: str) -> float:
    """Teaches which letter follows which; gives the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    positions = torch.arange(model.length - 1, device=device)

    @torch_xla.compile
    def step(text: Tensor) -> Tensor:
        optimizer.zero_grad()
        logits, _ = model(text[:, :-1], positions, model.caches(len(text), device))
        loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(steps):
        text = torch.randint(LETTERS, (16, 1))
        for _ in range(model.length - 1):
            text = torch.cat([text, following[text[:, -1:]]], 1)
        loss = step(text.to(device))
    return loss.cpu().item()


@torch.no_grad()
def by_token(model: Writer, first: Tensor, most: int) -> Tensor:
    """Each letter is read by the host, which decides whether to go on."""
    return _written(lambda *given: model(*given), model, first, most)


@torch.no_grad()
def replayed(model: Writer, first: Tensor, most: int) -> Tensor:
    """The step is a replay; the host still reads each letter."""
    return _written(torch_xla.compile(lambda *given: model(*given)), model, first, most)


def _written(step: Callable[..., tuple[Tensor, list[Tensor]]], model: Writer, first: Tensor, most: int) -> Tensor:
    token, caches, found = first[:, None], model.caches(len(first), str(first.device)), []
    is_done = torch.zeros(len(first), dtype=torch.bool)
    for place in range(most):
        position = torch.tensor([place]).to(first.device)
        logits, caches = step(token, position, caches)
        token = logits[:, -1].argmax(-1, keepdim=True)
        letters = token[:, 0].cpu()
        found.append(letters.masked_fill(is_done, END))
        is_done |= letters == END
        if is_done.all():
            break
    written = torch.stack(found, 1)
    return F.pad(written, (0, most - written.shape[1]), value=END)


def step_of(model: Writer) -> Step:
    """One more letter of each text, as `decode` takes it."""

    def step(token: Tensor, state: tuple[Tensor, list[Tensor]]) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
        place, caches = state
        logits, caches = model(token[:, None], place, caches)
        return logits[:, -1], (place + 1, caches)

    return step


@torch.no_grad()
def at_once(step: Step, model: Writer, first: Tensor, most: int, **options: Any) -> Tensor:
    """One program: the device decides when all texts have ended."""
    start = torch.zeros(1, dtype=torch.int64, device=DEVICE), model.caches(len(first), DEVICE)
    tokens, _, _ = decode(step, first, start, most, end_token=END, is_step_pure=True, **options)
    return tokens.cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="fewer steps and shorter texts")
    args = parser.parse_args()
    torch.manual_seed(0)
    most = 16 if args.fast else 48
    following = torch.randperm(LETTERS)
    model = Writer(length=most + 1).to(DEVICE)
    print(f"loss after training {train(model, following, 20 if args.fast else 300, DEVICE):.3f}")
    model.eval()
    first = torch.arange(1, 9).to(DEVICE)
    texts: dict[str, Tensor] = {}
    ways = {"by token": by_token, "replayed": replayed, "at once": functools.partial(at_once, step_of(model))}
    for name, way in ways.items():
        way(model, first, most)  # compiles
        before, started = metrics.counter_value("UncachedCompile") or 0, time.perf_counter()
        texts[name] = way(model, first, most)
        spent = time.perf_counter() - started
        compiled = (metrics.counter_value("UncachedCompile") or 0) - before
        written = int((texts[name] != END).sum())
        print(f"{name:9} {written / spent:8.0f} letters/s, programs compiled for this text {compiled}")
    same = all(texts["by token"].equal(each) for each in texts.values())
    print(f"all ways wrote the same: {same}")
    drawn = ways["at once"](model, first, most, choose=sampling(temperature=20.0, top_k=8))
    differ = not drawn.equal(texts["at once"])
    print(f"drawn letters differ from the most likely: {differ}")
    fallbacks = metrics.executed_fallback_ops()
    print(f"CPU fallbacks {len(fallbacks)}")
    if not same or not differ or fallbacks:
        raise SystemExit("a bound was missed")


if __name__ == "__main__":
    main()
