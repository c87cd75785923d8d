"""A small model that a random function trains, and what programs do to models between steps.

All its numbers are halves of halves, so that the CPU and XLA compute the same to the last bit.
"""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Running(nn.Module):
    """Keeps a mean in a buffer while it trains, and says twice as much otherwise."""

    mean: torch.Tensor
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the mean of all inputs so far."""
        if not self.training:
            return x * 2 + self.mean
        self.mean.mul_(0.5).add_(x.detach(), alpha=0.5)
        self.calls.add_(1)
        return x * self.scale + self.mean


class Model:
    """A model with its optimizer."""

    def __init__(self, chance: random.Random, device: str) -> None:
        self.chance = chance
        self.device = device
        self.module = nn.Sequential(nn.Linear(2, 2), Running())
        with torch.no_grad():
            for parameter in self.module.parameters():
                parameter.fill_(0.5)
        self.module.to(device)
        self._momentum, self._foreach = chance.choice((0.0, 0.5)), chance.choice((None, False))
        self.optimizer = self._new_optimizer()
        self.set_to_none = chance.random() < 0.7
        self.clears_first = chance.random() < 0.5
        self.hooked: list[float] = []
        self.handles: list[Any] = []
        self.written = {each: each._version for each in self.module.parameters()}  # as they come to the device

    def _new_optimizer(self) -> torch.optim.SGD:
        return torch.optim.SGD(self.module.parameters(), lr=0.5, momentum=self._momentum, foreach=self._foreach)

    def train(self, x: torch.Tensor) -> torch.Tensor:
        """A step; returns the loss."""
        if self.clears_first:
            self.optimizer.zero_grad(set_to_none=self.set_to_none)
        loss = self.module(x).sum()
        loss.backward()
        self.optimizer.step()
        if not self.clears_first:
            self.optimizer.zero_grad(set_to_none=self.set_to_none)
        return loss.detach()

    def disturb(self) -> None:
        """Does something to the model that programs do between steps."""
        self.chance.choice(self.DISTURBANCES)(self)

    def _mode(self) -> None:
        self.module.train(not self.module.training)

    def _rate(self) -> None:
        self.optimizer.param_groups[0]["lr"] = self.chance.choice((0.25, 0.5))

    def _scale(self) -> None:
        self.module[1].scale = self.chance.choice((1.0, 2.0))  # type: ignore[assignment]

    def _hook(self) -> None:
        if self.handles:
            self.handles.pop().remove()
        elif self.chance.random() < 0.5:
            self.handles.append(self.module[0].register_forward_hook(lambda *_: self.hooked.append(1)))
        else:
            node = torch.autograd.graph.get_gradient_edge(self.module[0].weight).node  # type: ignore[arg-type]
            self.handles.append(node.register_hook(lambda *_: self.hooked.append(1)))

    def _layer(self) -> None:
        other = nn.Linear(2, 2)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.fill_(0.25)
        self.module[0] = other.to(self.device)
        self.optimizer = self._new_optimizer()

    def _freeze(self) -> None:
        bias = self.module[0].bias
        bias.requires_grad_(not bias.requires_grad)  # type: ignore[union-attr,operator]

    def _load(self) -> None:
        state = {name: torch.full_like(value, 0.5) for name, value in self.module.state_dict().items()}
        self.module.load_state_dict(state)

    def _load_optimizer(self) -> None:
        self.optimizer.load_state_dict(self.optimizer.state_dict())

    def _gradients(self) -> None:
        for parameter in self.module.parameters():
            parameter.grad = None if self.chance.random() < 0.5 else torch.full_like(parameter, 0.25)

    def _data(self) -> None:
        weight = self.module[0].weight
        weight.data = torch.full((2, 2), 0.75, device=self.device)  # type: ignore[assignment]

    def _read(self) -> None:
        self.hooked.append(self.module[0].weight[1, 0].item())  # type: ignore[index,operator,union-attr]

    def _keep(self) -> None:
        self.hooked.append(float(self.module[1].mean.clone().sum()))  # type: ignore[arg-type,operator,union-attr]

    DISTURBANCES: tuple[Callable[["Model"], None], ...] = (
        _mode, _rate, _scale, _hook, _layer, _freeze, _load, _load_optimizer, _gradients, _data, _read, _read, _keep,
    )  # fmt: skip

    def state(self) -> list[Any]:
        """All that can be seen of it."""
        gradients = [parameter.grad for parameter in self.module.parameters()]
        momenta = [state.get("momentum_buffer") for state in self.optimizer.state.values()]
        versions = [each._version - self.written.get(each, each._version) for each in self.module.parameters()]
        return [list(self.module.state_dict().values()), gradients, momenta, versions, list(self.hooked)]
