"""A random function made of small ones, and what is done to what it sees between its calls, made from a seed."""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torch_xla._engine.compiled.replay import small_tensor_packing

from ..engine.compiled.replay.small_functions import EFFECTS, SEEN, as_at_first, told
from . import around
from .model import Model

CALLS = 20
# So often a function is called whose state is packed as in a long training.
LONG = 1_300


def is_long(seed: int) -> bool:
    """Whether the function of this seed is called long enough for its small values to be packed."""
    return seed % 100 == 7


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
        self.model = Model(chance, device) if chance.random() < 0.5 else None
        self.counts, self.scales = (chance.random() < 0.4 for _ in range(2))
        self.count, self.scale = torch.zeros(()), 0.5  # on the host
        self.place = chance.choice(around.NAMES) if chance.random() < 0.3 else ""
        self.noted: list[int] = []
        self.is_long = is_long(seed)
        # How often something happens between two calls: seldom enough for replays, often enough to disturb them.
        self.rate = 0.005 if self.is_long else chance.choice((0.05, 0.15, 0.3))

    def step(self, x: torch.Tensor) -> Any:
        if self.limit < 0:
            raise ValueError("over")
        factor = 1.0
        for thing, (_, read, _) in zip(self.things, self.seen, strict=True):
            factor *= read(thing)
        if self.effect is not None:
            self.effect[1](self.acted_on)
        if self.scales:
            factor = factor * self.scale
        if self.counts:
            self.count.add_(1)
            count = self.count.item()
            factor = factor * (0.5 ** (count % 4) if count < 11 else 2.0)
        if self.writes:
            self.state.add_(x)
            self.alias.mul_(0.5)
        if self.learns:
            if self.clears:
                self.weight.grad = None
            (self.weight * x).sum().backward()
        result = torch.square(x) * factor
        if self.model is not None:
            result = result + self.model.train(x)
        return [result, {"a": result, "b": result.t()}, (self.state, result), self.weight.grad][self.returns]

    def between(self, index: int) -> None:
        """Change the state before call number `index`."""
        chance = self.chance
        if index == self.fails_at:
            self.limit = -1
        for thing, (_, _, change) in zip(self.things, self.seen, strict=True):
            if index > 5 and chance.random() < self.rate:
                change(thing, index % 200)
        what = chance.randrange(14) if index > 4 and chance.random() < 2 * self.rate else 14
        with torch.no_grad():
            if what == 0:
                self.state.fill_(0.25)
            elif what == 1:
                self.weight.grad = None
            elif what == 2:
                self.weight.data = torch.full((2,), 2.0, device=self.device)
            elif what == 3:
                self.weight.register_hook(lambda gradient: gradient * 0.5)
            elif what == 4:
                self.alias = self.state
            elif what == 5:
                self.noted.append(self.state[1].item())
            elif what == 6:
                self.count.fill_(chance.choice((2.0, 12.0)))
            elif what == 7:
                self.count = torch.ones(())
        if index > 2 and chance.random() < 0.3:
            self.scale = chance.choice((0.25, 0.5, 1.0))
        if self.model is not None and index > 4 and chance.random() < self.rate:
            self.model.disturb()

    def call(self, step: Any, index: int) -> Any:
        """Makes call number `index` wherever it happens."""
        x = torch.full((2,), float(index % 3 + 1), device=self.device)
        elsewhere = self.place if index > 4 and self.chance.random() < self.rate else ""
        return around.called(elsewhere, self.noted, step, x)


def run(seed: int, device: str, compiled: Callable[[Any], Any]) -> list[Any]:
    """Return a log of the function of this seed at each call."""
    composed = Composed(seed, device)
    step = compiled(composed.step)
    before, small_tensor_packing._AFTER = (
        small_tensor_packing._AFTER,
        small_tensor_packing._AFTER if composed.is_long else 2,
    )
    log: list[Any] = []
    kept: list[Any] = []
    try:
        for index in range(LONG if composed.is_long else CALLS):
            composed.between(index)
            looks = not composed.is_long or composed.chance.random() < 0.02
            try:
                result = composed.call(step, index)
                kept += [result] if looks else []
                log.append(told(result) if looks else None)
            except Exception as error:  # whatever PyTorch or Python raises on the CPU
                log.append((type(error).__name__, str(error) if isinstance(error, ValueError) else ""))
            if looks:
                log.append(_seen_of(composed))
    finally:
        small_tensor_packing._AFTER = before
    return [*log, told(kept)]


def _seen_of(composed: Composed) -> Any:
    seen = composed.effect[2](composed.acted_on) if composed.effect is not None else None
    model = told(composed.model.state()) if composed.model is not None else None
    host = told(composed.count), composed.count._version, composed.scale
    return told(composed.state), told(composed.weight.grad), composed.state._version, told(seen), model, host
