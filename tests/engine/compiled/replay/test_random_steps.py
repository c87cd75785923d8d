"""Random step functions, replayed on the device and called on the CPU: the same state and results after every call."""

import random
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

import torch_xla

State = list[torch.Tensor]
Command = Callable[[State, torch.Tensor], torch.Tensor | None]


@pytest.fixture(autouse=True)
def steps_end() -> Iterator[None]:
    torch_xla.sync()
    yield
    torch_xla.sync()


def assign(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


COMMANDS: list[Command] = [
    lambda s, x: s[0].add_(x),
    lambda s, x: s[1].mul_(0.5).add_(s[0]),
    lambda s, x: s[0][1].copy_(s[1][0]),
    lambda s, x: s[2].t().sub_(x.t()),
    lambda s, x: assign(s[1], s[2]),
    lambda s, x: assign(s[2], x),
    lambda s, x: s[3].add_(1),
    lambda s, x: s[0].clamp_(-3, 3),
    lambda s, x: x.mul_(2),
    lambda s, x: s[1].zero_(),
    lambda s, x: s[0] * 2 + x,
    lambda s, x: (s[1] @ s[2].t()).sum(0),
    lambda s, x: s[2][:, 1:],
    lambda s, x: s[0].clone(),
    lambda s, x: s[3] * 3,
    lambda s, x: s[2],
    lambda s, x: torch.stack([s[0], x]).amax(0),
]

# Changes of the state between calls.
BETWEEN: list[Command] = [
    lambda s, x: s[0].mul_(0.25),
    lambda s, x: assign(s[1], s[0]),
    lambda s, x: s[3].zero_(),
    lambda s, x: s.__setitem__(2, s[2] + 1),
    lambda s, x: None,
]


@pytest.mark.parametrize("seed", range(10))
def test_a_random_step_is_that_of_the_cpu(seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    chosen = chance.choices(COMMANDS, k=chance.randint(2, 7))
    theirs: State = [torch.randn(2, 2), torch.randn(2, 2), torch.randn(2, 2), torch.zeros((), dtype=torch.int64)]
    ours: State = [tensor.to("xla") for tensor in theirs]

    def step(state: State, x: torch.Tensor) -> list[torch.Tensor]:
        results = [command(state, x) for command in chosen]
        return [result for result in results if result is not None]

    replayed = torch_xla.compile(lambda x: step(ours, x), replay=True)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for index in range(14):
        x = torch.randn(2, 2)
        given = x.to("xla")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = replayed(given)
        for one, other in zip(results, step(theirs, x), strict=True):
            torch.testing.assert_close(one.cpu(), other)
            kept.append((one, other))
        for one, other in zip([*ours, given], [*theirs, x], strict=True):
            torch.testing.assert_close(one.cpu(), other)
        if index > 6 and chance.random() < 0.5:
            between = chance.choice(BETWEEN)
            between(theirs, x)
            between(ours, given)
    # Results are memory of their own, or the state's: either way they are still what PyTorch's are.
    for one, other in kept:
        torch.testing.assert_close(one.cpu(), other)
