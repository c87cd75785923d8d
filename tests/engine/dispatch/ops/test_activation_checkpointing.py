"""Activation checkpointing in a program of the whole step: the same gradients for less memory."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import torch_xla
import torch_xla.utils.checkpoint
from torch_xla._engine.compile import program_cache

LAYERS, ROWS, WIDTH = 6, 256, 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))))


def step(way: str) -> tuple[list[Tensor], float]:
    """Gradients of one step, and the MiB for intermediate values of its program."""
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Block() for _ in range(LAYERS))).to("xla")
    x = torch.randn(ROWS, WIDTH).to("xla").requires_grad_()
    torch.manual_seed(1)
    if way == "sequential":
        out = checkpoint_sequential(blocks, LAYERS, x, use_reentrant=False)
    else:
        out = x
        for block in blocks:
            out = CALLS[way](block, out)
    out.pow(2).mean().backward()
    gradients = [p.grad for p in blocks.parameters()] + [x.grad]
    torch_xla.sync()
    program = list(program_cache._programs.values())[-1]
    (ready,) = program._executables.values()
    memory: Any = ready.executable
    return [g.cpu() for g in gradients if g is not None], memory.memory_analysis().temp_size_in_bytes / 2**20


CALLS: dict[str, Any] = {
    "plain": lambda block, x: block(x),
    "without reentry": lambda block, x: checkpoint(block, x, use_reentrant=False),
    "with reentry": lambda block, x: checkpoint(block, x, use_reentrant=True),
    "torch_xla": torch_xla.utils.checkpoint.checkpoint,
}


@pytest.fixture(scope="module")
def plain() -> tuple[list[Tensor], float]:
    return step("plain")


LESS_USED = [pytest.param(way, marks=pytest.mark.slow) for way in ("without reentry", "sequential")]


@pytest.mark.parametrize("way", ["with reentry", "torch_xla", *LESS_USED])
def test_a_checkpoint_saves_memory_and_changes_nothing(way: str, plain: tuple[list[Tensor], float]) -> None:
    gradients, memory = step(way)
    for ours, theirs in zip(gradients, plain[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    # Six blocks' intermediate values become those of one, beside the six inputs.
    assert memory < plain[1] / 2.5


def test_special_numbers_pass_a_recomputation_unchanged() -> None:
    special = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, 3.0]
    x = torch.tensor(special).to("xla").requires_grad_()
    seen: list[Tensor] = []

    def function(x: Tensor, flags: Tensor, counts: Tensor) -> Tensor:
        seen.extend((x.detach().clone(), flags.clone(), counts.clone()))
        return x * 2

    flags = torch.tensor([True, False]).to("xla")
    counts = torch.tensor([-3, 0, 7]).to("xla")
    checkpoint(function, x, flags, counts, use_reentrant=True).sum().backward()
    first, again = seen[:3], seen[3:]
    assert first[0].cpu().view(torch.int32).tolist() == again[0].cpu().view(torch.int32).tolist()
    assert again[1].tolist() == [True, False] and again[2].tolist() == [-3, 0, 7]


def test_a_checkpoint_on_the_cpu_stays_as_it_is() -> None:
    x = torch.ones(3, requires_grad=True)
    checkpoint(torch.sin, x, use_reentrant=False).sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(3).cos())
