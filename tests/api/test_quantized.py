"""Numbers of few bits: PyTorch's operators and ours, beside the CPU and beside floats."""

import warnings
from typing import Any

import pytest
import torch
from torch.ao.quantization import get_default_qconfig_mapping
from torch.ao.quantization.quantize_fx import _convert_to_reference_decomposed_fx, prepare_fx

from torch_xla.debug import metrics
from torch_xla.experimental import quantized
from torch_xla.experimental.xla_quantized_matmul import XlaQuantizedLinear, quantized_matmul

decomposed = torch.ops.quantized_decomposed
X = torch.randn(4, 8)
PER_ROW = (torch.rand(4) * 0.1 + 0.01, torch.randint(-3, 3, (4,)))
PER_TOKEN = (torch.rand(4, 1) * 0.1 + 0.01, torch.zeros(4, 1, dtype=torch.int64))
PER_GROUP = (torch.rand(4, 2) * 0.1 + 0.01, torch.randint(-3, 3, (4, 2)).int())
BOUNDS = (-128, 127, torch.int8)

PAIRS: list[tuple[str, str, tuple[Any, ...], tuple[Any, ...]]] = [
    ("quantize_per_tensor", "dequantize_per_tensor", (0.02, 3, *BOUNDS), ()),
    (
        "quantize_per_tensor.tensor",
        "dequantize_per_tensor.tensor",
        (torch.tensor([0.02]), torch.tensor([3]), *BOUNDS),
        (),
    ),
    ("quantize_per_channel", "dequantize_per_channel", (*PER_ROW, 0, *BOUNDS), ()),
    ("quantize_per_token", "dequantize_per_token", (*PER_TOKEN, *BOUNDS), (torch.float32,)),
    (
        "quantize_per_channel_group",
        "dequantize_per_channel_group",
        (*PER_GROUP, -8, 7, torch.int8, 4),
        (torch.float32,),
    ),
]


def operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(decomposed, packet), overload or "default")


def moved(arguments: tuple[Any, ...]) -> list[Any]:
    return [each.to("xla") if isinstance(each, torch.Tensor) else each for each in arguments]


@pytest.mark.parametrize(("there", "back", "settings", "last"), PAIRS, ids=["", "tensors", "channel", "token", "group"])
@pytest.mark.parametrize("compiled", [False, True])
def test_there_and_back(there: str, back: str, settings: Any, last: Any, compiled: bool) -> None:
    def both(x: torch.Tensor, *settings: Any) -> Any:
        rounded = operator(there)(x, *settings)
        return rounded, operator(back)(rounded, *settings, *last)

    metrics.clear_counters()
    run = torch.compile(both, backend="openxla", fullgraph=True) if compiled else both
    found = run(X.to("xla"), *moved(settings))
    torch.testing.assert_close([each.cpu() for each in found], list(both(X, *settings)))
    assert metrics.executed_fallback_ops() == [] and not metrics.counter_value("DynamoGraphByOperator")


def test_by_their_names() -> None:
    scale, zero = PER_ROW
    for function, settings in (
        (quantized.xla_quantize_per_tensor, (0.02, 3, *BOUNDS)),
        (quantized.xla_quantize_per_channel, (scale, zero, 0, *BOUNDS)),
    ):
        rounded = function(X.to("xla"), *moved(settings))
        torch.testing.assert_close(rounded.cpu(), function(X, *settings))
        back = quantized.xla_dequantize_per_tensor
        torch.testing.assert_close(back(rounded, *moved(settings)).cpu(), back(rounded.cpu(), *settings))


def test_a_model_that_pytorch_quantised() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare_fx(model, get_default_qconfig_mapping("x86"), (X,))
        prepared(X)
        converted = _convert_to_reference_decomposed_fx(prepared)
    expected = converted(X)
    metrics.clear_counters()
    found = converted.to("xla")(X.to("xla")).cpu()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert metrics.executed_fallback_ops() == []
    assert (found - model(X)).abs().max() < 0.05 * model(X).abs().max()


def weights(block_size: int, limit: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A weight, its scales and zero points, and what it is as floats [inputs, outputs]."""
    if block_size == -1:
        w, scale, zero = torch.randint(-limit, limit, (5, 8)), torch.rand(5) + 0.1, torch.randn(5)
        return w.to(torch.int8), scale, zero, (w * scale[:, None] - zero[:, None]).t()
    w, scale, zero = torch.randint(-limit, limit, (2, 4, 5)), torch.rand(2, 5) + 0.1, torch.randn(2, 5)
    return w.to(torch.int8), scale, zero, (w * scale[:, None] - zero[:, None]).reshape(8, 5)


@pytest.mark.parametrize("block_size", [-1, 4])
@pytest.mark.parametrize("int4", [False, True])
def test_a_linear_layer(block_size: int, int4: bool) -> None:
    w, scale, zero, floats = weights(block_size, 8 if int4 else 128)
    layer = XlaQuantizedLinear(8, 5, block_size=block_size, int4_weight=int4)
    layer.load_quantized_weight(w, scale, zero)
    torch.testing.assert_close(layer(X), X @ floats, rtol=1e-4, atol=1e-4)
    assert layer.weight.nbytes == w.nbytes // (2 if int4 else 1)
    layer.to("xla")
    x = X.to("xla").requires_grad_()
    result = layer(x)
    torch.testing.assert_close(result.detach().cpu(), X @ floats, rtol=1e-4, atol=1e-4)
    result.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), torch.ones(4, 5) @ floats.t(), rtol=1e-4, atol=1e-4)
    rounded = quantized_matmul(x.detach(), layer.weight, layer.weight_scaler, layer.zero_point, block_size, int4, True)
    assert (rounded.cpu() - X @ floats).abs().max() < 0.02 * (X @ floats).abs().max()


@pytest.mark.parametrize("int4", [False, True])
@pytest.mark.parametrize("block_size", [-1, 128])
def test_a_wide_layer_in_bfloat16(block_size: int, int4: bool) -> None:
    size = (64, 256) if block_size == -1 else (2, block_size, 64)
    w, scale = torch.randint(-8, 8, size, dtype=torch.int8), torch.rand(size[0] if block_size == -1 else (2, 64)) + 0.1
    layer = XlaQuantizedLinear(256, 64, True, block_size, int4)
    layer.load_quantized_weight(w, scale)
    x = torch.randn(16, 256).bfloat16()
    floats = (w * scale[:, None]).t() if block_size == -1 else (w * scale[:, None]).reshape(256, 64)
    expected = x.double() @ floats.double()
    on_cpu, on_xla = layer(x), layer.to("xla")(x.to("xla")).cpu()
    for found in (on_cpu, on_xla):
        assert found.dtype == torch.bfloat16
        assert (found.double() - expected).abs().max() < 2**-7 * expected.abs().max()


@pytest.mark.parametrize("size", [(5, 7), (2, 3, 5)], ids=["a scale for each output", "blocks"])
def test_an_odd_number_of_inputs_of_four_bits(size: tuple[int, ...]) -> None:
    inputs, block_size = (7, -1) if len(size) == 2 else (6, 3)
    w = torch.randint(-8, 8, size, dtype=torch.int8)
    scale = torch.rand(5 if block_size == -1 else (2, 5))
    layer = XlaQuantizedLinear(inputs, 5, is_symmetric=True, block_size=block_size, int4_weight=True)
    layer.load_quantized_weight(w, scale)
    floats = (w * scale[:, None]).t() if block_size == -1 else (w * scale[:, None]).reshape(6, 5)
    x = torch.randn(4, inputs)
    torch.testing.assert_close(layer(x), x @ floats, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer.to("xla")(x.to("xla")).cpu(), x @ floats, rtol=1e-4, atol=1e-4)


def test_mistakes() -> None:
    layer = XlaQuantizedLinear(8, 5, is_symmetric=True, int4_weight=True)
    w, scale, zero, _ = weights(-1, 8)
    with pytest.raises(
        ValueError, match=r"expected a weight of shape \[5, 8\] with scales of shape \[5\]; got \[8, 5\] and \[5\]"
    ):
        layer.load_quantized_weight(w.t(), scale)
    with pytest.raises(ValueError, match="a symmetric layer takes no zero_point"):
        layer.load_quantized_weight(w, scale, zero)
    with pytest.raises(ValueError, match="-8 to 7; the weight has 9 to 9"):
        layer.load_quantized_weight(torch.full_like(w, 9), scale)
    with pytest.raises(ValueError, match=r"takes w \[out, in\] and scale \[out\]"):
        quantized_matmul(X.to("xla"), w.t().contiguous().to("xla"), scale.to("xla"))
    with pytest.raises(TypeError, match="a quantised weight is int8"):
        quantized_matmul(X.to("xla"), w.float().to("xla"), scale.to("xla"))
    with pytest.raises(ValueError, match="block_size=.* does not divide input_dim"):
        XlaQuantizedLinear(8, 5, block_size=3)
