"""Measure the cost of `torch_xla.debug.check_values()`: steps of a small transformer with it and without, in turn.

python -m benchmarks.check_values
"""

import time
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F

import torch_xla

_WIDTH, _WORDS, _ROWS, _LENGTH = 128, 1000, 16, 64


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(_WORDS, _WIDTH)
        self.layer = nn.TransformerEncoderLayer(_WIDTH, 4, 2 * _WIDTH, batch_first=True, dropout=0.0)
        self.last = nn.Linear(_WIDTH, _WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(self.layer(self.table(words)))
        return scores


def measured(rounds: int = 6, steps: int = 10) -> dict[str, tuple[float, float]]:
    """Milliseconds a step, without checks and with them: of the clock and of the processor, the least of all rounds."""
    model = _Model().to("xla")
    optimizer = torch.optim.AdamW(model.parameters())
    words, targets = (torch.randint(0, _WORDS, (_ROWS, _LENGTH)).to("xla") for _ in range(2))

    def run(count: int) -> tuple[float, float]:
        begins, used = time.perf_counter(), time.process_time()
        for _ in range(count):
            F.cross_entropy(model(words).flatten(0, 1), targets.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            torch_xla.sync()
        torch_xla.sync(wait=True)
        return (time.perf_counter() - begins) / count * 1e3, (time.process_time() - used) / count * 1e3

    found: dict[str, list[tuple[float, float]]] = {"unchecked": [], "checked": []}
    for turn in range(rounds + 1):
        for name, results in found.items():
            with torch_xla.debug.check_values() if name == "checked" else nullcontext():
                result = run(steps)
            if turn:  # the first compiles
                results.append(result)
    return {name: (min(r[0] for r in results), min(r[1] for r in results)) for name, results in found.items()}


if __name__ == "__main__":
    for name, (clock, processor) in measured().items():
        print(f"{name:>10}: {clock:6.2f} ms a step, {processor:6.2f} ms of the processor")
