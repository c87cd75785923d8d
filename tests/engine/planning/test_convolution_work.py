"""Count the multiplications of a convolution that meet an element of the input."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xla._engine.planning.convolution_work import _inside, _Side, flops
from torch_xla._engine.planning.hlo_parser import Leaf


def leaf(*dims: int) -> Leaf:
    return Leaf("bf16", dims)


def test_a_product_of_matrices() -> None:
    assert flops("dim_labels=bf_io->bf", leaf(256, 384), leaf(384, 640), leaf(256, 640)) == 2 * 256 * 384 * 640
    assert flops("dim_labels=fb_oi->bf", leaf(8, 4), leaf(6, 8), leaf(4, 6)) == 2 * 4 * 8 * 6


def test_a_batch_of_products_is_a_window_that_hangs_out_of_the_input() -> None:
    attributes = "window={size=12 stride=11 pad=0_0 lhs_dilate=12} dim_labels=0bf_0io->0bf"
    assert flops(attributes, leaf(12, 256, 64), leaf(12, 64, 256), leaf(12, 256, 256)) == 2 * 12 * 256 * 64 * 256
    reversed_window = "window={size=12 pad=11_11 rhs_reversal=1} dim_labels=0bf_0io->0bf"
    found = flops(reversed_window, leaf(1, 256, 64), leaf(12, 64, 256), leaf(12, 256, 256))
    assert found == 2 * 12 * 256 * 64 * 256


def test_a_convolution_of_images_counts_no_padding() -> None:
    attributes = "window={size=3x3 pad=1_1x1_1} dim_labels=bf01_oi01->bf01"
    found = flops(attributes, leaf(4, 16, 32, 32), leaf(32, 16, 3, 3), leaf(4, 32, 32, 32))
    assert found == 2 * 4 * 16 * 32 * (3 * 32 - 2) ** 2
    grouped = f"{attributes}, feature_group_count=16"
    assert flops(grouped, leaf(4, 16, 32, 32), leaf(16, 1, 3, 3), leaf(4, 16, 32, 32)) == 2 * 4 * 16 * (3 * 32 - 2) ** 2
    assert flops("", leaf(1), leaf(1), leaf(1)) == 0


@settings(deadline=None)
@given(size=st.integers(1, 9), kernel=st.integers(1, 5), stride=st.integers(1, 3), low=st.integers(-1, 4),
       input_dilation=st.integers(1, 3), kernel_dilation=st.integers(1, 3), output=st.integers(1, 9))  # fmt: skip
def test_each_pair_of_an_output_and_a_place_of_the_kernel_counts_once(
    size: int, kernel: int, stride: int, low: int, input_dilation: int, kernel_dilation: int, output: int
) -> None:
    elements = {place * input_dilation for place in range(size)}
    pairs = [
        (at, place)
        for at in range(output)
        for place in range(kernel)
        if at * stride - low + place * kernel_dilation in elements
    ]
    assert _inside(size, kernel, output, _Side(stride, low, input_dilation, kernel_dilation)) == len(pairs)


@pytest.mark.parametrize("count", [1, 5])
def test_sides_without_a_window(count: int) -> None:
    assert flops("dim_labels=b0f_0io->b0f", leaf(2, count, 3), leaf(1, 3, 4), leaf(2, count, 4)) == 2 * 2 * count * 12
