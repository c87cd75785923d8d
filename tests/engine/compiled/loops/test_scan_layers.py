"""Equal modules one after the other as one scan."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from torch_xla._engine.compat.names.torch_dynamo import default_partition
from torch_xla._engine.compiled.loops import scan_layers as scanned
from torch_xla._engine.compiled.loops.scan_layers import require_equal, scan_layers


class Layer(nn.Module):
    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.linear, self.norm, self.number = nn.Linear(2, 2), nn.BatchNorm1d(2), number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)).tanh() + x  # type: ignore[no-any-return]


@pytest.mark.slow
def test_results_gradients_and_buffers_are_those_of_the_layers_in_turn() -> None:
    theirs = nn.ModuleList(Layer(number) for number in range(3))  # each layer knows its number, but does not use it
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


class Bent(nn.Module):
    """Multiplies by what it keeps in an attribute, however it is kept there."""

    def __init__(self, keep: Callable[[float], Any], value: float) -> None:
        super().__init__()
        self.weight, self.kept = nn.Parameter(torch.ones(2)), keep(value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.kept[0] if isinstance(self.kept, (list, tuple)) else self.kept
        kept = kept["it"] if isinstance(kept, dict) else kept
        return x * self.weight * (kept(x) if callable(kept) else kept)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "keep",
    [
        lambda value: value,
        lambda value: [value],
        lambda value: ({"it": value}, "name"),
        np.float32,
        torch.tensor,
        lambda value: torch.tensor(value, device="xla"),
        lambda value: lambda x: torch.tensor([value, value], device=x.device),
    ],
    ids=["float", "list", "nested", "numpy", "tensor", "on the device", "constant of a function"],
)
def test_what_a_layer_keeps_in_an_attribute_makes_it_another_where_it_computes_with_it(keep: Any) -> None:
    x = torch.ones(2, device="xla")
    equal = [Bent(keep, 2.0).to("xla") for _ in range(2)]
    assert scan_layers(equal, x, default_partition, is_pure=False).tolist() == [4.0, 4.0]
    with pytest.raises(ValueError, match="layer 1 differs from layer 0 in kept: "):
        scan_layers([equal[0], Bent(keep, 100.0).to("xla")], x, default_partition, is_pure=False)


def test_tensors_that_get_gradients_and_are_no_parameters_belong_to_one_layer() -> None:
    def keep(value: float) -> torch.Tensor:
        return torch.tensor(value, device="xla", requires_grad=True)

    with pytest.raises(ValueError, match=r"layer 1 .* in kept: a tensor of its own, float32\[\] on xla, where layer 0"):
        scan_layers(
            [Bent(keep, 2.0).to("xla") for _ in range(2)], torch.ones(2, device="xla"), default_partition, False
        )


def test_kinds_of_operands_without_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanned, "_MOST", 2)
    layers = [nn.Linear(2, 2, device="xla") for _ in range(2)]
    for size in range(1, 5):
        assert scan_layers(layers, torch.ones(size, 2, device="xla"), default_partition, True).shape == (size, 2)
    assert len(scanned.known_layers[layers[0]]) <= 2


class Counting(nn.Module):
    """A layer that writes to a part of a buffer and reads all of it."""

    def __init__(self, memory: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("whole", memory)
        self.register_buffer("part", memory[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.part.add_(1)
        return x + self.whole.sum(0)


def test_memory_that_a_layer_writes_to_and_sees_twice_is_refused() -> None:
    x = torch.zeros(3, device="xla")
    layers = [Counting(torch.zeros(2, 3, device="xla")) for _ in range(2)]
    words = r"part of layer 0, float32\[3\], is written to and shares memory with whole of layer 0, float32\[2, 3\]"
    with pytest.raises(RuntimeError, match=words):
        scan_layers(layers, x, default_partition, is_pure=False)
    assert layers[0].part.tolist() == [0, 0, 0]
    shared = torch.zeros(2, 3, device="xla")
    for layer, row in zip(layers, shared, strict=True):
        layer.whole, layer.part = row[None], shared[1:][0]
    with pytest.raises(RuntimeError, match="part of layer 0, .* shares memory with whole of layer 1"):
        scan_layers(layers, x, default_partition, is_pure=False)
    for layer in layers:
        layer.part = shared
    with pytest.raises(RuntimeError, match="what all layers share, .* shares memory with whole of layer 0"):
        scan_layers(layers, x, default_partition, is_pure=False)
    for layer in layers:
        layer.whole, layer.part = torch.zeros(1, 3, device="xla"), torch.zeros(3, device="xla")
    with pytest.raises(RuntimeError, match="part of layer 0, .* shares memory with the input"):
        scan_layers(layers, layers[0].part, default_partition, is_pure=False)
    layers = [Counting(torch.zeros(2, 3, device="xla"))]
    # One layer alone is in it twice: what all layers share is written round by round.
    assert scan_layers([layers[0], layers[0]], x, default_partition, is_pure=False).tolist() == [3, 3, 3]
    # Each has a part of its own.
    norms = [nn.BatchNorm1d(3, device="xla") for _ in range(2)]
    for norm, row in zip(norms, torch.zeros(2, 3, device="xla"), strict=True):
        norm.running_mean = row
    scan_layers(norms, torch.ones(4, 3, device="xla"), default_partition, is_pure=False)
    assert norms[0].running_mean is not None and norms[0].running_mean.tolist() == [pytest.approx(0.1)] * 3
