"""Equal modules one after the other as one scan."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from torch_xla._engine.dynamo import layers as scanned
from torch_xla._engine.dynamo.layers import require_equal, scan_layers
from torch_xla._engine.private.dynamo import default_partition


class Layer(nn.Module):
    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.linear, self.norm, self.number = nn.Linear(2, 2), nn.BatchNorm1d(2), number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)).tanh() + x  # type: ignore[no-any-return]


@pytest.mark.slow
def test_results_gradients_and_buffers_are_those_of_the_layers_in_turn() -> None:
    theirs = nn.ModuleList(Layer(number) for number in range(3))  # which are told their number, and do not use it
    ours = copy.deepcopy(theirs).to("xla")
    x = torch.randn(4, 2)
    expected = x
    for layer in theirs:
        expected = layer(expected)
    found = scan_layers(ours, x.to("xla"), default_partition, is_pure=True)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
    expected.sum().backward()
    found.sum().backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)  # type: ignore[union-attr]
    for mine, other in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(mine.cpu(), other, rtol=1e-4, atol=1e-5)
    assert scan_layers([], x, default_partition, False) is x


def changed(change: Callable[[Layer], object]) -> list[Layer]:
    layers = [Layer().to("xla") for _ in range(3)]
    change(layers[2])
    return layers


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda layer: setattr(layer, "linear", nn.Linear(2, 2, bias=False).to("xla")), "linear.bias: in one of them"),
        (lambda layer: setattr(layer, "linear", nn.Identity()), "in linear: a Identity, where layer 0 has a Linear"),
        (lambda layer: layer.norm.eval(), "norm.training: False, where layer 0 has True"),
        (lambda layer: layer.linear.weight.requires_grad_(False), r"weight: float32\[2, 2\] on xla, no gradient"),
        (lambda layer: layer.add_module("more", nn.ReLU()), "its modules: 'more' is in one of them alone"),
        (lambda layer: layer.register_forward_hook(print), "_forward_hooks: not those of layer 0"),
        (lambda layer: setattr(layer.norm, "eps", 0.5), "norm.eps: 0.5, where layer 0 has 1e-05"),
    ],
)
def test_a_layer_that_differs_is_named_with_what_differs(change: Callable[[Layer], object], words: str) -> None:
    with pytest.raises(ValueError, match=rf"^scan_layers\(\) needs equal layers; layer 2 differs .*{words}"):
        require_equal(changed(change), torch.ones(4, 2).to("xla"))


def test_kinds_of_operands_without_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanned, "_MOST", 2)
    layers = [nn.Linear(2, 2, device="xla") for _ in range(2)]
    for size in range(1, 5):
        assert scan_layers(layers, torch.ones(size, 2, device="xla"), default_partition, True).shape == (size, 2)
    assert len(scanned._recipes[layers[0]]) <= 2
