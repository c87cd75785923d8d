"""Exported functions called with tensors."""

import numpy as np
import pytest
import torch

from torch_xla._engine.export import exported_program
from torch_xla._engine.export.exported_calls import Model, function_of

MODULE = """
func.func @main(%x: tensor<2x3xf32>, %n: tensor<i64>) -> (tensor<2x3xf32>, tensor<i64>) {
  %y = stablehlo.add %x, %x : tensor<2x3xf32>
  return %y, %n : tensor<2x3xf32>, tensor<i64>
}"""


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        self.calls.add_(1)  # type: ignore[operator]
        return {"y": self.linear(x), "three": 3, "calls": self.calls + 0}


def model(**options: object) -> tuple[Counting, Model]:
    plain = Counting()
    exported = torch.export.export(plain, (torch.ones(1, 2),))
    return plain, Model(exported_program.convert(exported, exported_program.Options(**options)))  # type: ignore[arg-type]


def test_a_module_is_a_function_of_tensors() -> None:
    call = function_of(MODULE)
    y, n = call(torch.ones(2, 3), torch.tensor(7).to("xla"))
    assert y.tolist() == [[2] * 3] * 2 and n.item() == 7 and y.device.type == "xla"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((torch.ones(2, 3),), TypeError, "the program takes 2 tensors; got 1"),
        ((torch.ones(2, 3), 7), TypeError, "takes tensors; got a int"),
        (
            (torch.ones(2, 4), torch.tensor(1)),
            ValueError,
            r"argument 0 of the program is float32\[2, 3\]; got float32\[2, 4\]",
        ),
        ((torch.ones(6), torch.tensor(1)), ValueError, r"got float32\[6\]"),
        ((torch.ones(2, 3), torch.tensor(1.0)), ValueError, r"argument 1 of the program is int64\[\]; got float32\[\]"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: tuple, error: type[Exception], words: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(error, match=words):
        function_of(MODULE)(*arguments)


def test_a_bundle_gives_what_the_model_does_and_keeps_what_it_writes() -> None:
    plain, ours = model()
    x = torch.tensor([[1.0, -2.0]])
    for calls in (1, 2):
        found = ours.call(None, (x,), {})
        torch.testing.assert_close(found["y"].cpu(), plain.linear(x).detach())
        assert found["three"] == 3 and found["calls"].item() == calls
    assert ours.bundle.state_dict["calls"] == 0  # until it is asked for
    assert ours.settled().state_dict["calls"] == 2 and ours.call("forward", (x,), {})["calls"].item() == 3


@pytest.mark.slow
def test_weights_that_are_replaced_are_used_and_missing_ones_are_named() -> None:
    _, ours = model()
    x = torch.ones(1, 2)
    ours.call(None, (x,), {})
    ours.bundle.state_dict["linear.weight"] = np.zeros((2, 2), np.float32)
    ours.bundle.state_dict["linear.bias"] = np.full(2, 5, np.float32)
    assert ours.call(None, (x,), {})["y"].tolist() == [[5, 5]]
    _, without = model(export_weights=False)
    with pytest.raises(KeyError, match="the bundle has no weight 'linear.weight'"):
        without.call(None, (x,), {})
    with pytest.raises(KeyError, match=r"the bundle has no function 'backward'; it has \['forward'\]"):
        ours.function("backward")
