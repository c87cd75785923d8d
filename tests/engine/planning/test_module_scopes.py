"""While a plan is made, modules name what they record."""

import threading

import pytest
import torch

from torch_xla._engine.planning.module_scopes import modules_named
from torch_xla._engine.step.named_scopes import open_scopes


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Seen(), Seen()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Seen(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scopes.append(open_scopes())
        if x.numel() == 0:
            raise ValueError
        return x


scopes: list[tuple[str, ...]] = []


def test_a_module_has_its_name_in_the_one_that_calls_it() -> None:
    scopes.clear()
    with modules_named():
        Net()(torch.ones(2))
        Seen()(torch.ones(2))
    Net()(torch.ones(2))
    assert scopes == [("Net", "layers.0"), ("Net", "layers.1"), ("Seen",), (), ()]


def test_a_module_that_fails_closes_its_scope() -> None:
    with modules_named(), pytest.raises(ValueError):
        Net()(torch.ones(0))
    assert open_scopes() == ()


def test_a_compiled_module_is_traced_all_the_same() -> None:
    layer = torch.nn.Linear(2, 2, device="xla")
    with modules_named(), torch.no_grad():
        result = torch.compile(layer, backend="openxla")(torch.ones(1, 2, device="xla"))
    torch.testing.assert_close(result.cpu(), layer(torch.ones(1, 2, device="xla")).cpu())
    assert open_scopes() == ()


def test_modules_of_two_threads_are_in_no_scope_of_each_other() -> None:
    in_first, second_done, found = threading.Event(), threading.Event(), []

    class Waits(torch.nn.Module):
        def forward(self) -> None:
            in_first.set()
            assert second_done.wait(10)
            found.append(open_scopes())

    class Says(torch.nn.Module):
        def forward(self) -> None:
            found.append(open_scopes())

    with modules_named():
        first = threading.Thread(target=Waits())
        first.start()
        assert in_first.wait(10)
        outer = Says()
        outer.waits = Waits()  # a module of the other thread would be taken for the parent
        outer()
        second_done.set()
        first.join()
    assert found == [("Says",), ("Waits",)]
