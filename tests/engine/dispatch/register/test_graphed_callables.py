"""`torch.xla.make_graphed_callables`: forward and backward passes that are captured graphs."""

import copy
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from torch_xla import debug

xla: Any = torch.xla  # type: ignore[attr-defined]


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))


def test_a_graphed_module_trains_as_on_the_cpu() -> None:
    cpu = model()
    own = copy.deepcopy(cpu).to("xla")
    graphed = xla.make_graphed_callables(own, (torch.randn(5, 4, device="xla", requires_grad=True),))
    assert graphed is own and all(each.grad is None for each in own.parameters())
    optimizer, reference = (torch.optim.SGD(each.parameters(), lr=0.3) for each in (own, cpu))
    for _ in range(3):
        x, y = torch.randn(5, 4), torch.randn(5, 3)
        mine, theirs = x.to("xla").requires_grad_(), x.clone().requires_grad_()
        for parts, inputs, target, steps in ((own, mine, y.to("xla"), optimizer), (cpu, theirs, y, reference)):
            steps.zero_grad()
            for _ in range(2):  # gradients of two calls are added
                F.mse_loss(parts(inputs * 1), target).backward()
            steps.step()
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)
    for found, expected in zip(own.parameters(), cpu.parameters(), strict=True):
        torch.testing.assert_close(found.detach().cpu(), expected.detach())


def test_results_of_earlier_calls_stay_as_they_were() -> None:
    double = xla.make_graphed_callables(lambda x: (x * 2, {"sum": x.sum()}), (torch.ones(2, device="xla"),))
    first, more = double(torch.full((2,), 1.0, device="xla"))
    second, _ = double(torch.full((2,), 5.0, device="xla"))
    assert first.tolist() == [2.0, 2.0] and more["sum"].item() == 2.0 and second.tolist() == [10.0, 10.0]


def test_functions_in_a_chain_compile_nothing_later() -> None:
    x = torch.ones(2, device="xla", requires_grad=True)
    sin, square = xla.make_graphed_callables((torch.sin, torch.square), ((x,), (x.detach().clone().requires_grad_(),)))
    y = torch.tensor([0.5, 1.0], device="xla", requires_grad=True)
    square(sin(y)).sum().backward()
    torch.testing.assert_close(y.grad.cpu(), torch.sin(torch.tensor([1.0, 2.0])))
    y.grad = None
    with debug.no_recompile():
        square(sin(y)).sum().backward()
    torch.testing.assert_close(y.grad.cpu(), torch.sin(torch.tensor([1.0, 2.0])))


def test_dropout_draws_anew_and_evaluation_is_not_graphed() -> None:
    dropout = xla.make_graphed_callables(torch.nn.Dropout(0.5), (torch.ones(64, device="xla"),))
    x = torch.ones(64, device="xla")
    assert dropout(x).tolist() != dropout(x).tolist()
    dropout.eval()
    assert dropout(x).tolist() == [1.0] * 64


def test_what_a_graph_cannot_follow_is_refused() -> None:
    x = torch.ones(2, device="xla")
    with pytest.raises(TypeError, match="expected tensors as arguments, got float.*functools.partial"):
        xla.make_graphed_callables(torch.mul, (x, 2.0))
    hooked = torch.nn.Linear(2, 2, device="xla")
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="the module has hooks"):
        xla.make_graphed_callables(hooked, (x,))
    with torch.autocast("xla"), pytest.raises(RuntimeError, match="cache_enabled=False"):
        xla.make_graphed_callables(torch.sin, (x,))
    sin = xla.make_graphed_callables(torch.sin, (x,))
    with pytest.raises(RuntimeError, match=r"expected arguments of sizes \[\[2\]\], as the sample's, got \[\[3\]\]"):
        sin(torch.ones(3, device="xla"))
