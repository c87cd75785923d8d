"""Collectives in every way of running, among three processes."""

from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from tests.support.fleet import fleet_of
from torch_xla.experimental import eager_mode

COUNT = 3


def step(x: torch.Tensor) -> torch.Tensor:
    total = xm.all_reduce(xm.REDUCE_SUM, x * 2) + 1
    rows = xm.all_gather(x[:1])
    return torch.cat([total, rows])


def expected(n: int) -> list[float]:
    return [2.0 * sum(r + n for r in range(COUNT)) + 1] * 2 + [float(r + n) for r in range(COUNT)]


def in_every_mode() -> list[str]:
    rank = xr.global_ordinal()
    wrong = []

    def look(mode: str, function: Any) -> None:
        for n in range(5):
            found = function(torch.full((2,), float(rank + n), device="xla")).tolist()
            if found != expected(n):
                wrong.append(f"{mode}, call {n}: {found} instead of {expected(n)}")

    look("recorded", step)
    look("compile", torch_xla.compile(step))
    look("full graph", torch_xla.compile(step, full_graph=True))
    look("replay", torch_xla.compile(step, replay=True))
    look("openxla", torch.compile(step, backend="openxla"))
    eager_mode(True)
    try:
        look("eager", step)
    finally:
        eager_mode(False)
    return wrong


@pytest.mark.slow
def test_collectives_are_right_in_every_mode() -> None:
    assert fleet_of(COUNT).run(in_every_mode, seconds=300) == [[]] * COUNT
