"""A random function made of small ones, and what is done to what it sees between its calls, made from a seed."""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..engine.modes.small_functions import EFFECTS, SEEN, as_at_first, told

CALLS = 20


class Composed:
    """Some things that a function reads, perhaps an effect, a state that it writes, a gradient, and what it returns."""

    def __init__(self, seed: int, device: str) -> None:
        as_at_first()
        chance = random.Random(seed)
        self.chance = chance
        self.seen = [SEEN[name] for name in chance.sample(sorted(SEEN), chance.randint(0, 2))]
        self.things = [make() for make, _, _ in self.seen]
        self.effect = EFFECTS[chance.choice(sorted(EFFECTS))] if chance.random() < 0.2 else None
        self.acted_on = self.effect[0]() if self.effect is not None else None
        self.writes, self.learns, self.clears = (chance.random() < 0.6 for _ in range(3))
        self.returns = chance.randrange(4)
        self.fails_at = chance.randrange(CALLS) if chance.random() < 0.1 else -1
        self.limit = 0
        self.device = device
        self.state = torch.zeros(2, device=device)
        self.alias = self.state[1:] if chance.random() < 0.5 else self.state.detach()
        self.weight = nn.Parameter(torch.ones(2, device=device))

    def step(self, x: torch.Tensor) -> Any:
        if self.limit < 0:
            raise ValueError("over")
        factor = 1.0
        for thing, (_, read, _) in zip(self.things, self.seen, strict=True):
            factor *= read(thing)
        if self.effect is not None:
            self.effect[1](self.acted_on)
        if self.writes:
            self.state.add_(x)
            self.alias.mul_(0.5)
        if self.learns:
            if self.clears:
                self.weight.grad = None
            (self.weight * x).sum().backward()
        result = x * factor
        return [result, {"a": result, "b": result.t()}, (self.state, result), self.weight.grad][self.returns]

    def between(self, index: int) -> None:
        """What happens before call number `index`."""
        chance = self.chance
        if index == self.fails_at:
            self.limit = -1
        for thing, (_, _, change) in zip(self.things, self.seen, strict=True):
            if index > 5 and chance.random() < 0.2:
                change(thing, index)
        what = chance.randrange(12) if index > 4 else 12
        with torch.no_grad():
            if what == 0:
                self.state.fill_(0.25)
            elif what == 1:
                self.weight.grad = None
            elif what == 2:
                self.weight.data = torch.full((2,), 2.0, device=self.device)
            elif what == 3:
                self.weight.register_hook(lambda gradient: gradient * 2)
            elif what == 4:
                self.alias = self.state


def run(seed: int, device: str, compiled: Callable[[Any], Any]) -> list[Any]:
    """What the function of this seed did at each call."""
    composed = Composed(seed, device)
    step = compiled(composed.step)
    log: list[Any] = []
    kept: list[Any] = []
    for index in range(CALLS):
        composed.between(index)
        try:
            result = step(torch.full((2,), float(index % 3 + 1), device=device))
            kept.append(result)
            log.append(told(result))
        except (ValueError, TypeError) as error:
            log.append((type(error).__name__, str(error)))
        seen = composed.effect[2](composed.acted_on) if composed.effect is not None else None
        log.append((told(composed.state), told(composed.weight.grad), composed.state._version, told(seen)))
    return log + [told(kept)]
