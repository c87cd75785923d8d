"""The first step of an optimizer is the program of all its steps: its state is filled when it is made."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import torch_xla
import torch_xla.debug as xd
from torch_xla._engine.dispatch import optimizer_state_init
from torch_xla._engine.tensor.storage import value_of
from torch_xla.debug import metrics as met

Make = Callable[[Iterable[Tensor]], optim.Optimizer]


def made_in_a_function(parameters: Iterable[Tensor]) -> optim.Optimizer:
    class Averaging(optim.Optimizer):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for p in self.param_groups[0]["params"]:
                state = self.state[p]
                if not state:
                    state["steps"], state["average"] = 0, torch.zeros_like(p)
                state["steps"] += 1
                state["average"].mul_(0.9).add_(p.grad, alpha=0.1)
                p.add_(state["average"], alpha=-0.1 / (1 - 0.9 ** state["steps"]))

    return Averaging(parameters, {})


OPTIMIZERS: dict[str, Make] = {
    "AdamW": optim.AdamW,
    "AdamW, foreach=False": lambda p: optim.AdamW(p, foreach=False),
    "NAdam, foreach=False": lambda p: optim.NAdam(p, foreach=False),
    "Adamax, foreach=False": lambda p: optim.Adamax(p, foreach=False),
    "Adagrad, foreach=False": lambda p: optim.Adagrad(p, lr_decay=0.1, foreach=False),
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "SGD, foreach=False": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=False),
    "SGD, fused": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, maximize=True, fused=True),
    "made in a function": made_in_a_function,
    "AdamW, fused": lambda p: optim.AdamW(p, fused=True),
    "Adam, amsgrad": lambda p: optim.Adam(p, amsgrad=True),
    "Adagrad": lambda p: optim.Adagrad(p, initial_accumulator_value=0.5),
    "Adadelta": optim.Adadelta,
    "Adamax": optim.Adamax,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "RMSprop": lambda p: optim.RMSprop(p, momentum=0.9, centered=True),
    "Rprop": optim.Rprop,
}


def losses(make: Make, device: str, steps: int = 7) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(device)
    x, optimizer = torch.randn(4, 3).to(device), make(model.parameters())
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        found.append(loss.detach())
    return [loss.item() for loss in found]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_steps_are_one_program(name: str) -> None:
    expected = losses(OPTIMIZERS[name], "cpu")
    met.clear_all()
    torch.testing.assert_close(losses(OPTIMIZERS[name], "xla"), expected, rtol=1e-5, atol=1e-7)
    assert met.metric_data("CompileTime")[0] <= 1  # none where an earlier test left it


def test_the_first_momentum_is_the_gradient_to_the_last_bit() -> None:
    gradient = torch.tensor([0.0, -0.0, 3.5, -1e30, torch.inf, torch.nan, 1.1754944e-38])
    for foreach in (True, False):
        parameter = nn.Parameter(torch.ones(7).to("xla"))
        parameter.grad = gradient.to("xla")
        optimizer = optim.SGD([parameter], lr=0.1, momentum=0.9, foreach=foreach)
        optimizer.step()
        momentum = optimizer.state[parameter]["momentum_buffer"].cpu()
        assert torch.equal(momentum.view(torch.int32), gradient.view(torch.int32))


@pytest.mark.parametrize("options", [{"dampening": 0.5}, {"differentiable": True}, {"momentum": 0.0}], ids=str)
def test_momentum_that_begins_in_another_way_is_left_to_pytorch(options: dict[str, Any]) -> None:
    def momentums(device: str) -> list[Any]:
        parameter = torch.ones(3).to(device)
        optimizer = optim.SGD([parameter], **{"lr": 0.1, "momentum": 0.9, **options})
        found = []
        for _ in range(3):
            parameter.grad = torch.full((3,), 2.0).to(device)
            with torch.no_grad():
                optimizer.step()
            found.append(optimizer.state[parameter].get("momentum_buffer"))
        return [None if each is None else each.detach().tolist() for each in found]

    assert momentums("xla") == momentums("cpu")


def test_a_rate_that_changes_at_every_step_costs_no_compile() -> None:
    parameters = [nn.Parameter(torch.ones(3, n + 2).to("xla")) for n in range(3)]
    optimizer = optim.SGD(parameters, lr=0.1, momentum=0.9)
    schedule = optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=5)
    met.clear_all()
    for _ in range(5):
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 2.0)
        optimizer.step()
        schedule.step()
        torch_xla.sync()
    assert met.metric_data("CompileTime")[0] == 1


class Filling(optim.Optimizer):
    """Keeps what the device fills for it."""

    def __init__(self, parameter: Tensor) -> None:
        super().__init__([parameter], {})

    def step(self, closure: Any = None) -> Any:
        (p,) = self.param_groups[0]["params"]
        return [torch.zeros_like(p), torch.full_like(p, 2.5), torch.ones(2, device=p.device, dtype=torch.int64)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_what_is_filled_is_as_on_the_cpu(dtype: torch.dtype) -> None:
    parameter = torch.empty(2, 3, 4, 5, dtype=dtype).to(memory_format=torch.channels_last)
    for ours, theirs in zip(Filling(parameter.to("xla")).step(), Filling(parameter).step(), strict=True):
        assert value_of(ours).state == "data"
        assert ours.dtype is theirs.dtype and ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.cpu(), theirs)


def test_two_states_share_no_memory() -> None:
    first, _, counts = Filling(torch.ones(2, 3).to("xla")).step()
    second = torch.zeros_like(first)
    first.add_(1)
    counts.add_(1)
    torch_xla.sync()
    assert first.sum().item() == 6 and second.sum().item() == 0 and counts.tolist() == [2, 2]


def test_others_are_recorded() -> None:
    parameter = torch.ones(2, 3).to("xla")
    assert value_of(torch.zeros_like(parameter)).state == "pending"
    torch_xla.experimental.eager_mode(True)
    try:
        states = Filling(parameter).step()
        assert states[0].tolist() == [[0.0] * 3] * 2
    finally:
        torch_xla.experimental.eager_mode(False)


def test_who_fills_a_tensor_keeps_nothing_else() -> None:
    kept = torch.ones(3).to("xla")
    gone = weakref.ref(kept)
    torch.zeros(2, device="xla")
    del kept
    assert gone() is None


def test_a_plan_needs_no_memory_for_them() -> None:
    model = nn.Linear(64, 64).to("xla")
    optimizer = optim.AdamW(model.parameters())

    def step() -> None:
        model(torch.ones(2, 64, device="xla")).sum().backward()
        optimizer.step()

    plan = xd.plan(step)
    assert plan.peak > 0 and not optimizer.state


def test_the_operators_that_fill_are_kernels_of_their_own() -> None:
    assert set(optimizer_state_init.KERNELS) == {"zeros", "zeros_like", "ones", "full_like"}
