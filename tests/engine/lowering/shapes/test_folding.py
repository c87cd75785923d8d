"""Patches of images, and trading channels for pixels, agree with PyTorch on the CPU."""

import pytest
import torch

import torch_xla._engine.lowering.shapes.folding  # noqa: F401
from tests.support.rule_table import call, check_calls

aten = torch.ops.aten

# kernel, dilation, padding, stride
WINDOWS = [
    ([3, 2], [1, 1], [0, 0], [1, 1]),
    ([3, 3], [1, 2], [1, 2], [2, 1]),
    ([2, 4], [1, 1], [0, 0], [2, 4]),
    ([1, 1], [1, 1], [0, 0], [3, 2]),
    ([2, 2], [3, 1], [2, 1], [2, 3]),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_images_are_cut_into_patches_and_patches_summed_up(dtype: torch.dtype) -> None:
    image = torch.randint(-8, 9, (2, 3, 9, 10)).to(dtype)
    calls = []
    for window in WINDOWS:
        patches = aten.im2col(image.real.double(), *window).to(dtype)
        calls.append(call(aten.im2col.default, image, *window))
        calls.append(call(aten.im2col.default, image[0], *window))
        calls.append(call(aten.col2im.default, patches, [9, 10], *window))
        calls.append(call(aten.col2im.default, patches[0], [9, 10], *window))
    check_calls(calls)


def test_no_images_have_no_patches() -> None:
    window = WINDOWS[0]
    calls = [call(aten.im2col.default, torch.zeros(0, 3, 9, 10), *window)]
    check_calls([*calls, call(aten.col2im.default, torch.zeros(0, 18, 63), [9, 10], *window)])


def test_large_windows_that_overlap_are_summed_up() -> None:
    image, window = torch.randn(1, 2, 30, 25), ([20, 18], [1, 1], [1, 0], [1, 2])
    patches = aten.im2col(image, *window)
    check_calls([call(aten.im2col.default, image, *window), call(aten.col2im.default, patches, [30, 25], *window)])


@pytest.mark.parametrize(("size", "step"), [(3, 1), (3, 3), (2, 4), (1, 1), (9, 1), (18, 1), (4, 3)])
def test_gradients_of_windows_are_summed_up(size: int, step: int) -> None:
    calls = []
    for dim in (0, -1):
        operand = torch.randn(20, 3, 20)
        grad = torch.randn(operand.unfold(dim, size, step).shape)
        calls.append(call(aten.unfold_backward.default, grad, [20, 3, 20], dim % 3, size, step))
    check_calls(calls)


def test_channels_and_pixels_are_traded() -> None:
    image = torch.randn(2, 18, 6, 9)
    check_calls(
        [
            call(aten.pixel_shuffle.default, image, 3),
            call(aten.pixel_shuffle.default, image[0], 3),
            call(aten.pixel_shuffle.default, image[None], 1),
            call(aten.pixel_unshuffle.default, image, 3),
            call(aten.pixel_unshuffle.default, image[0, 0, None], 3),
            call(aten.channel_shuffle.default, image, 3),
            call(aten.channel_shuffle.default, image[..., 0], 6),
        ]
    )
