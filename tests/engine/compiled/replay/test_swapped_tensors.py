"""The program swaps a tensor that a replay has seen: PyTorch allows this, and the replay notices."""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_xla
from torch_xla.experimental import eager_mode_context

WAYS: dict[str, Callable[[Any], Any]] = {
    "plain": torch_xla.compile,
    "replay": lambda function: torch_xla.compile(function, replay=True),
    "recorded": lambda function: function,
    "openxla": lambda function: torch.compile(function, backend="openxla"),
    "eager": lambda function: function,
}


@pytest.fixture
def swapping() -> Iterator[None]:
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(before)


def trained(device: str, way: Callable[[Any], Any], between: Callable[[nn.Module], Any], calls: int) -> list[float]:
    """Return the losses of a training, with a change of the model in the middle."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    x, given = torch.randn(4, 3).to(device), torch.tensor(0.5)
    model.to(device)

    def loss_of(x: Tensor) -> Tensor:
        given.add_(0.25)  # a number on the host that every call changes
        return model(x).square().sum()

    function = way(loss_of)
    losses = []
    for call in range(2 * calls):
        if call == calls:
            between(model)
        loss = function(x)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
        losses.append(float(loss.detach()))
        del loss
    torch.utils.swap_tensors(given, torch.tensor(9.0))
    return losses


def swap_the_weight(model: nn.Module) -> None:
    weight = model.weight
    torch.utils.swap_tensors(weight, nn.Parameter(2 * weight.detach()))
    assert model.weight is weight


@pytest.mark.filterwarnings("ignore:.*is recorded this time", "ignore:.*is recorded, not replayed")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("between", [swap_the_weight, nn.Module.half, nn.Module.double])
def test_a_parameter_is_swapped(way: str, between: Callable[[Any], Any], swapping: None) -> None:
    if between is not swap_the_weight:

        def between(model: nn.Module, convert: Any = between) -> None:  # noqa: F811
            before = model.weight
            convert(model), model.float()
            assert model.weight is before  # swapped, not replaced

    calls = 20 if way == "plain" else 6
    with eager_mode_context(way == "eager"):
        ours = trained("xla", WAYS[way], between, calls)
    expected = trained("cpu", lambda function: function, between, calls)
    assert ours == pytest.approx(expected, rel=1e-4)


@pytest.mark.filterwarnings("ignore:.*is recorded this time")
@pytest.mark.parametrize("calls", range(1, 9))
def test_a_gradient_and_a_step_that_is_replayed_are_swapped(calls: int) -> None:
    weight, x = nn.Parameter(torch.ones(3).to("xla")), torch.arange(3.0).to("xla")

    @torch_xla.compile(replay=True)
    def step() -> Tensor:
        loss = (weight * x).sum()
        loss.backward()
        with torch.no_grad():
            weight.sub_(weight.grad)
            weight.grad = None
        return loss.detach()

    for _ in range(calls):
        step()
    assert calls < 5 or step.is_replayed
    torch.utils.swap_tensors(weight, nn.Parameter(torch.full((3,), 7.0).to("xla")))
    assert [step().item() for _ in range(6)] == [21.0 - 5.0 * n for n in range(6)]
    assert step.is_replayed


def test_what_is_not_replayed_does_not_keep_what_it_has_seen() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)

    models = [Model().to("xla")]
    x = torch.ones(2).to("xla")

    def function() -> Tensor:
        return models[0](x).sum().detach() if models else x.sum()

    compiled = torch_xla.compile(function, replay=True)
    compiled(), compiled()
    assert not compiled.is_replayed
    there = weakref.ref(models.pop())
    gc.collect()
    assert there() is None


@pytest.mark.filterwarnings("ignore:.*is recorded this time")
def test_another_model_takes_the_place_of_one_that_was_replayed() -> None:
    models = [nn.Linear(2, 2).to("xla")]
    x = torch.ones(2).to("xla")

    @torch_xla.compile(replay=True)
    def function() -> Tensor:
        return models[0](x).sum().detach()

    for _ in range(6):
        function()
    there = weakref.ref(models[0])
    models[0] = nn.Linear(2, 2).to("xla")
    for _ in range(6):
        function()
    assert function.is_replayed
    gc.collect()
    assert there() is None
