"""Calls in a graph that the CPU refuses: found by the dtypes and numbers in it, and raised when it is called."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support.twins import outcome
from torch_xla._engine.compiled.dynamo.graph_refusals import refusal_in


def nodes(function: Any, *operands: torch.Tensor, mode: str = "fake") -> list[torch.fx.Node]:
    return list(make_fx(function, tracing_mode=mode)(*operands).graph.nodes)


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_the_first_call_that_is_refused_is_found(mode: str) -> None:
    whole, real = torch.arange(6).view(2, 3), torch.ones(2, 3)
    assert refusal_in(nodes(lambda a: torch.hypot(a, a) + 1, real, mode=mode)) is None
    refusal = refusal_in(nodes(lambda a: torch.hypot(a + 1, a), whole, mode=mode))
    assert isinstance(refusal, NotImplementedError) and "hypot_cpu" in str(refusal)


def test_what_the_cpu_lacks_for_halves_is_no_refusal() -> None:
    assert refusal_in(nodes(lambda a: torch.polygamma(1, a) @ a, torch.ones(3, 3, device="meta").half())) is None


def test_a_graph_of_dynamic_sizes_is_refused_when_it_is_called() -> None:
    compiled = torch.compile(lambda a: torch.hypot(a, a), backend="openxla", dynamic=True)
    for size in (2, 3):
        with pytest.raises(NotImplementedError, match="hypot_cpu"):
            compiled(torch.ones(size, dtype=torch.int64, device="xla"))
    assert compiled(torch.ones(4, device="xla")).shape == (4,)


def _bytes(device: str) -> torch.Tensor:
    return torch.tensor([7, 200, 250], dtype=torch.uint8, device=device)


def _halves(device: str) -> torch.Tensor:
    return torch.tensor([1.0, 2.0], dtype=torch.float16, device=device)


NUMBERS: dict[str, Callable[[str], torch.Tensor]] = {
    "a quotient": lambda d: _bytes(d) // 256,
    "a quotient in place": lambda d: _bytes(d).floor_divide_(0),
    "a truncated quotient": lambda d: torch.div(_bytes(d), 0, rounding_mode="trunc"),
    "a remainder": lambda d: _bytes(d) % 512,
    "of a number": lambda d: 300 % _bytes(d),
    "of a number that fits": lambda d: 200 // _bytes(d),
    "fmod": lambda d: torch.fmod(_bytes(d), 300),
    "a power": lambda d: 2 ** torch.ones(2, device=d).to(torch.float8_e4m3fn),
    "a power of one": lambda d: 1 ** torch.ones(2, device=d).to(torch.float8_e4m3fn),
    "full": lambda d: torch.full((2,), 300, dtype=torch.uint8, device=d),
    "full of floats": lambda d: torch.full((2,), 1e40, device=d),
    "full of infinities": lambda d: torch.full((2,), float("inf"), dtype=torch.float16, device=d),
    "where": lambda d: torch.where(_bytes(d) > 9, _bytes(d), 300),
    "where, negative": lambda d: torch.where(_bytes(d) > 9, _bytes(d), -1),
    "fill_": lambda d: _halves(d).fill_(1e6),
    "clamp": lambda d: _halves(d).clamp(max=1e6),
    "a sum": lambda d: _bytes(d) + 300,
    "uniform": lambda d: _halves(d).uniform_(2, 1),
    "uniform of halves": lambda d: _halves(d).uniform_(-1e5, 1e5),
    "uniform of bytes": lambda d: _halves(d).to(torch.float8_e5m2).uniform_(),
    "dropout of complex numbers": lambda d: torch.nn.functional.alpha_dropout(_halves(d) * 1j, 0.5, True),
    "integers": lambda d: torch.full((2,), 1 << 63, dtype=torch.int64, device=d),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_refused_as_on_the_cpu(name: str) -> None:
    found: list[torch.Tensor] = []
    theirs = outcome(lambda d: found.append(NUMBERS[name](d)), "cpu")
    ours = outcome(lambda d: found.append(torch.compile(NUMBERS[name], backend="openxla")(d)), "xla")
    assert (type(ours), str(ours)) == (type(theirs), str(theirs))
    if theirs is None:
        assert found[1].tolist() == found[0].tolist()
