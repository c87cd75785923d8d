"""The tensors of a script are found, and replaced, wherever they are."""

from typing import Any

import pytest
import torch
from torch import nn

from torch_xla._engine.compat.names import torchscript

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")  # which is deprecated


class Pair:
    """A class that scripts know."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x
        self.y = 2


class Holder(nn.Module):
    """Tensors in every place that TorchScript has for them."""

    many: list[torch.Tensor]
    named: dict[str, torch.Tensor]

    def __init__(self) -> None:
        super().__init__()
        torch.jit.script(Pair)
        self.inner = nn.Linear(1, 1)
        self.register_buffer("buffer", torch.ones(1))
        self.plain = torch.ones(1)
        self.many = [torch.ones(1), torch.ones(1)]
        self.named = {"a": torch.ones(1)}
        self.pair = Pair(torch.ones(1))
        self.number = 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = self.buffer + self.plain + self.many[0] + self.many[1] + self.named["a"] + self.pair.x * self.pair.y
        return self.inner(x) * 0 + inside * self.number


def made() -> Any:
    return torch.jit.script(Holder())


def test_modules_are_found_with_those_in_them() -> None:
    top = torchscript.object_of(torch.jit.script(nn.Sequential(nn.Sequential(nn.Linear(1, 1)))))
    assert [each._type().name() for each in torchscript.modules_of(top)] == ["Sequential", "Sequential", "Linear"]


def test_slots_and_their_tensors() -> None:
    slots = dict(torchscript.slots_of(torchscript.object_of(made())))
    assert slots["number"] == 3
    counts = {name: len(list(torchscript.tensors_in(value))) for name, value in slots.items()}
    assert {name: count for name, count in counts.items() if count} == {
        "buffer": 1, "plain": 1, "many": 2, "named": 1, "pair": 1,
    }  # fmt: skip


def test_tensors_are_replaced_in_every_place() -> None:
    holder = made()
    torchscript.replace(torchscript.object_of(holder), lambda tensor: tensor * 10)
    assert holder(torch.ones(1)).item() == 7 * 10 * 3


def test_a_class_that_python_does_not_know_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = made()
    for table in ("_script_classes", "_name_to_pyclass"):
        monkeypatch.setattr(torch.jit._state, table, {})
    assert dict(torchscript.slots_of(torchscript.object_of(holder))).keys() >= {"plain", "many"}
    torchscript.replace(torchscript.object_of(holder), lambda tensor: tensor * 10)
    assert holder(torch.ones(1)).item() == (5 * 10 + 2) * 3


def test_constants_are_found_and_replaced_in_functions_and_modules() -> None:
    closed = torch.full((2,), 5.0)
    traced = torch.jit.trace(lambda x: x + closed, torch.ones(2), check_trace=False)  # which calls it
    assert [tensor is closed for _, tensor in torchscript.constants_of(traced)] == [True]
    torchscript.replace_constants(traced, lambda tensor: tensor * 2)
    assert traced(torch.zeros(2)).tolist() == [10, 10]
    frozen = torch.jit.freeze(made().eval())
    assert len(list(torchscript.constants_of(torchscript.object_of(frozen)))) >= 2
    assert not list(torchscript.constants_of(torchscript.object_of(made())))


def test_constants_of_functions_that_are_called_are_found() -> None:
    closed = torch.full((2,), 5.0)
    called = torch.jit.trace(lambda x: x + closed, torch.ones(2))

    @torch.jit.script
    def calls(x: torch.Tensor) -> torch.Tensor:
        return called(x)  # type: ignore[no-any-return]

    assert [tensor.tolist() for _, tensor in torchscript.constants_of(calls)] == [[5, 5]]
