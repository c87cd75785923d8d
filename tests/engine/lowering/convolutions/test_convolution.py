"""Convolutions and their gradients, compared with PyTorch on the CPU."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

from tests.support.rules import apply_rule
from tests.support.topologies import forms_of_a_tpu as forms_of_a_tpu
from torch_xla._engine.lowering.convolutions import convolution, correlation, correlation_on_cpu
from torch_xla._engine.lowering.convolutions.window import Window

aten = torch.ops.aten

# batch, input channels, output channels, extent, kernel, stride, padding, dilation, groups
PLAIN: list[tuple[Any, ...]] = [
    (2, 3, 4, (9,), (3,), [1], [1], [1], 1),
    (2, 3, 4, (9,), (3,), [2], [0], [2], 1),
    (2, 3, 4, (8, 7), (3, 3), [1, 1], [1, 1], [1, 1], 1),
    (2, 3, 4, (8, 7), (3, 2), [2, 3], [1, 0], [1, 2], 1),
    (2, 3, 4, (8, 7), (3, 3), [2], [2], [1], 1),
    (2, 3, 4, (5, 5), (1, 3), [1, 1], [3, 3], [1, 1], 1),  # margins wider than the kernel
    (2, 4, 6, (8, 7), (1, 1), [1, 1], [0, 0], [1, 1], 1),
    (2, 4, 6, (13, 12), (1, 1), [1, 1], [0, 0], [1, 1], 2),
    (2, 4, 6, (8, 7), (1, 1), [2, 3], [1, 1], [1, 1], 2),
    (2, 3, 4, (9, 8), (2, 2), [2, 2], [0, 0], [1, 1], 1),  # patches
    (3, 4, 4, (8, 7), (3, 3), [1, 1], [1, 1], [1, 1], 4),  # depthwise
    (2, 4, 8, (8, 7), (3, 3), [2, 2], [1, 1], [1, 2], 4),
    (2, 4, 8, (9, 12), (5, 6), [2, 1], [2, 3], [1, 2], 4),
    (2, 8, 12, (8, 7), (3, 3), [1, 2], [1, 1], [1, 1], 4),
    (2, 8, 12, (8, 7), (3, 3), [1, 1], [0, 1], [2, 1], 2),
    (2, 3, 4, (5, 6, 4), (3, 3, 3), [1, 1, 1], [1, 1, 1], [1, 1, 1], 1),
    (2, 4, 4, (5, 6, 4), (3, 2, 2), [2, 1, 2], [1, 0, 1], [1, 2, 1], 2),
    (2, 4, 4, (5, 6, 4), (2, 2, 2), [1, 1, 1], [0, 0, 0], [1, 1, 1], 4),
    (2, 3, 4, (4, 4, 4), (2, 2, 2), [2, 2, 2], [0, 0, 0], [1, 1, 1], 1),
    (2, 2, 3, (20, 12), (9, 8), [1, 1], [4, 4], [1, 1], 1),  # too many elements to unroll
    (3, 4, 5, (4, 4), (3, 3), [1, 1], [1, 1], [1, 1], 1),  # small images
    (3, 4, 5, (6, 7), (3, 2), [2, 3], [1, 0], [2, 1], 1),
    (3, 64, 64, (16, 20), (3, 3), [1, 1], [1, 1], [1, 1], 1),  # side by side
    (3, 64, 64, (16, 20), (3, 3), [2, 1], [1, 2], [1, 2], 1),
    (3, 32, 64, (16, 21), (3, 3), [2, 3], [1, 0], [1, 1], 1),
    (0, 3, 4, (8, 7), (3, 3), [1, 1], [1, 1], [1, 1], 1),
]
# ... and output padding
TRANSPOSED: list[tuple[Any, ...]] = [
    (2, 3, 4, (9,), (3,), [1], [1], [1], 1, [0]),
    (2, 3, 4, (9,), (3,), [3], [1], [2], 1, [2]),
    (2, 4, 6, (8, 7), (3, 3), [2, 2], [1, 1], [1, 1], 1, [1, 1]),
    (2, 4, 6, (8, 7), (3, 4), [2, 1], [0, 2], [1, 2], 2, [0, 1]),
    (2, 4, 4, (8, 7), (3, 3), [2, 2], [1, 1], [1, 1], 4, [1, 0]),
    (2, 4, 6, (5, 6), (2, 2), [2, 2], [0, 0], [1, 1], 1, [0, 0]),  # patches
    (2, 4, 6, (5, 6), (2, 2), [2, 2], [0, 0], [1, 1], 1, [1, 1]),
    (2, 4, 6, (5, 6), (1, 1), [2, 2], [0, 0], [1, 1], 2, [1, 1]),
    (2, 4, 6, (5, 6), (3, 3), [1, 1], [3, 3], [1, 1], 1, [0, 0]),  # margins that crop
    (2, 4, 6, (5, 6), (3, 3), [1, 1], [0, 0], [2, 2], 1, [1, 1]),  # padded further than the stride
    (2, 4, 6, (2, 2), (3, 3), [2, 1], [1, 1], [1, 1], 1, [0, 0]),  # small images
    (2, 3, 4, (4, 5, 3), (3, 2, 3), [2, 2, 1], [1, 0, 1], [1, 1, 1], 1, [1, 0, 0]),
    (2, 4, 4, (4, 5, 3), (3, 2, 3), [2, 2, 1], [1, 0, 1], [1, 1, 1], 2, [1, 0, 0]),
    (0, 3, 4, (8, 7), (3, 3), [1, 1], [1, 1], [1, 1], 1, [0, 0]),
]
CASES = [(*case, False) for case in PLAIN] + [(*case, True) for case in TRANSPOSED]


def arguments(case: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    """Return arguments of `convolution`: integers, so that every form must agree exactly in float32."""
    batch, inputs, outputs, extent, kernel, stride, padding, dilation, groups, *rest = case
    transposed = rest[-1]
    generator = torch.Generator().manual_seed(sum(extent))
    whole = lambda *size: torch.randint(-4, 5, size, generator=generator).to(dtype)  # noqa: E731
    shape = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    output_padding = rest[0] if transposed else [0] * len(extent)
    tensors = whole(batch, inputs, *extent), whole(*shape, *kernel), whole(outputs)
    return *tensors, stride, padding, dilation, transposed, output_padding, groups


def assert_equal(ours: Any, theirs: Any) -> None:
    if theirs is None:
        assert ours is None
    else:
        torch.testing.assert_close(ours.to(theirs.dtype), theirs, equal_nan=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions_and_their_gradients_agree_with_pytorch(case: tuple[Any, ...]) -> None:
    operands = arguments(case, torch.float32)
    expected = aten.convolution.default(*operands)
    assert_equal(apply_rule(aten.convolution.default, *operands), expected)
    generator = torch.Generator().manual_seed(0)
    grad = torch.randint(-4, 5, expected.shape, generator=generator).to(expected.dtype)
    input, weight, bias, *rest = operands
    backward = (grad, input, weight, list(bias.shape), *rest, [True, True, True])
    ours = apply_rule(aten.convolution_backward.default, *backward)
    for our, their in zip(ours, aten.convolution_backward.default(*backward), strict=True):
        assert_equal(our, their)


@pytest.mark.usefixtures("forms_of_a_tpu")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions_of_64_bit_integers_on_a_tpu(case: tuple[Any, ...]) -> None:
    """XLA has none there, but products and sums."""
    operands = arguments(case, torch.int64)
    ours = apply_rule(aten.convolution.default, *operands)
    assert ours.dtype is torch.int64 and torch.equal(ours, aten.convolution.default(*operands))


@pytest.mark.parametrize("case", CASES[1::4], ids=str)
def test_the_form_for_accelerators_agrees_with_that_for_the_cpu(
    case: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    input, weight, bias, *rest = arguments(case, torch.float32)
    expected = aten.convolution.default(input, weight, bias, *rest)
    grad = torch.ones_like(expected)
    backward = (grad, input, weight, list(bias.shape), *rest, [True, True, True])
    monkeypatch.setattr(correlation, "correlation_form", lambda *_: None)
    monkeypatch.setattr(correlation, "kernel_gradient_form", lambda *_: None)
    assert_equal(apply_rule(aten.convolution.default, input, weight, bias, *rest), expected)
    ours = apply_rule(aten.convolution_backward.default, *backward)
    for our, their in zip(ours, aten.convolution_backward.default(*backward), strict=True):
        assert_equal(our, their)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("case", [CASES[2], CASES[6], CASES[10]], ids=str)
def test_convolutions_take_the_dtypes_that_pytorch_takes(case: tuple[Any, ...], dtype: torch.dtype) -> None:
    operands = arguments(case, dtype)
    assert_equal(apply_rule(aten.convolution.default, *operands), aten.convolution.default(*operands))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_narrow_floats_are_summed_in_float32(dtype: torch.dtype) -> None:
    input, weight = torch.randn(4, 16, 9, 9).to(dtype), torch.randn(8, 16, 3, 3).to(dtype)
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    expected = aten.convolution.default(input, weight, None, *rest)
    assert_equal(apply_rule(aten.convolution.default, input, weight, None, *rest), expected)
    backward = (torch.randn(expected.shape).to(dtype), input, weight, [8], *rest, [True, True, True])
    ours = apply_rule(aten.convolution_backward.default, *backward)
    # PyTorch sums some of these in the narrow dtype, which ones depends on the processor: the exact ones instead.
    wide = (each.double() if isinstance(each, torch.Tensor) else each for each in backward)
    for our, exact in zip(ours, aten.convolution_backward.default(*wide), strict=True):
        torch.testing.assert_close(our.to(dtype), exact.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-2)


@pytest.mark.parametrize("mask", [[True, False, False], [False, True, False], [False, False, True]], ids=str)
def test_gradients_that_nobody_asks_for_are_none(mask: list[bool]) -> None:
    input, weight, _, *rest = arguments(CASES[2], torch.float32)
    grad = torch.ones(2, 4, 8, 7)
    whole = aten.convolution_backward.default(grad, input, weight, [4], *rest, [True, True, True])
    for op, sizes in (
        (aten.convolution_backward.default, ([4],)),
        (aten.convolution_backward_overrideable.default, ()),
    ):
        ours = apply_rule(op, grad, input, weight, *sizes, *rest, mask)
        for our, their, wanted in zip(ours, whole, mask, strict=True):
            assert_equal(our, their if wanted else None)


def test_infinities_and_nans_pass_through_every_form() -> None:
    for case in (CASES[2], CASES[6], CASES[10], CASES[15], CASES[21]):
        input, weight, bias, *rest = arguments(case, torch.float32)
        weight = weight.clamp_min(1)  # an infinity times zero is not a number, in padding that only some forms have
        input.view(-1)[7], input.view(-1)[-5] = float("inf"), float("nan")
        expected = aten.convolution.default(input, weight, bias, *rest)
        assert_equal(apply_rule(aten.convolution.default, input, weight, bias, *rest), expected)


def test_an_overrideable_convolution_is_the_same_and_time_may_come_first() -> None:
    operands = arguments(CASES[2], torch.float32)
    assert_equal(apply_rule(aten.convolution_overrideable.default, *operands), aten.convolution.default(*operands))
    time_first = torch.randn(7, 2, 3), torch.randn(3, 3, 5), torch.randn(5), 1
    assert_equal(apply_rule(aten.conv_tbc.default, *time_first), aten.conv_tbc.default(*time_first))


def test_an_image_without_channels_stays_without() -> None:
    operands = (torch.ones(2, 0, 6, 6), torch.ones(5, 0, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert_equal(apply_rule(aten.convolution.default, *operands), aten.convolution.default(*operands))


def test_a_plain_wide_convolution_stays_one_convolution_on_every_platform() -> None:
    """Its form must not hide behind a choice of platforms: that costs time in every trace."""
    window = convolution._window((3, 3), [1], [1], [1])
    assert correlation_on_cpu.correlation_form((8, 128, 32, 32), (128, 128, 3, 3), window, 1) is None
    operands = jnp.ones((8, 128, 32, 32)), jnp.ones((128, 128, 3, 3))
    text = str(jax.make_jaxpr(lambda x, k: correlation.correlate(x, k, window, 1))(*operands))
    assert "platform_index" not in text


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8])
def test_on_a_gpu_whole_numbers_are_convolved_in_float64(dtype: Any) -> None:
    # cuDNN has no kernel for them.
    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1))
    operands = jax.ShapeDtypeStruct((2, 3, 8, 7), dtype), jax.ShapeDtypeStruct((4, 3, 3, 3), dtype)
    with jax.enable_x64(True):
        traced = jax.jit(lambda operand, kernel: correlation.correlate(operand, kernel, window, 1)).trace(*operands)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    found = [line for line in text.splitlines() if "stablehlo.convolution" in line]
    assert found and all("xf64>" in line for line in found)
