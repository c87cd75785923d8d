"""The gradient of resizing goes to the pixels PyTorch gives it to."""

from typing import Any

import pytest
import torch

from tests.support.rules import check_rule

aten = torch.ops.aten

SIZES = (([6, 7], None), ([9, 4], None), ([8, 10], (2.0, 2.0)), ([3, 2], None), ([1, 1], None))


@pytest.mark.parametrize(("output", "scales"), SIZES)
@pytest.mark.parametrize("name", ("upsample_nearest2d", "_upsample_nearest_exact2d"))
def test_nearest(name: str, output: list[int], scales: Any) -> None:
    gradient = torch.randn(2, 3, *output, generator=torch.Generator().manual_seed(1))
    arguments = (gradient, output, [2, 3, 4, 5], *(scales or (None, None)))
    check_rule(getattr(aten, f"{name}_backward").default, *arguments)


@pytest.mark.parametrize(("output", "scales"), SIZES)
@pytest.mark.parametrize("align_corners", (True, False))
@pytest.mark.parametrize("name", ("upsample_bilinear2d", "upsample_bicubic2d"))
def test_interpolation(name: str, align_corners: bool, output: list[int], scales: Any) -> None:
    gradient = torch.randn(2, 3, *output, generator=torch.Generator().manual_seed(1))
    arguments = (gradient, output, [2, 3, 4, 5], align_corners, *(scales or (None, None)))
    # Weights are rounded from positions; sums of up to 16 products follow.
    check_rule(getattr(aten, f"{name}_backward").default, *arguments, rtol=1e-4, atol=1e-5)


def test_one_and_three_dimensions() -> None:
    gradient = torch.randn(1, 2, 7, generator=torch.Generator().manual_seed(1))
    check_rule(aten.upsample_nearest1d_backward.default, gradient, [7], [1, 2, 4], None)
    check_rule(aten.upsample_linear1d_backward.default, gradient, [7], [1, 2, 4], False, None)
    gradient = torch.randn(1, 2, 4, 5, 3, generator=torch.Generator().manual_seed(1))
    size = ([4, 5, 3], [1, 2, 2, 3, 3])
    check_rule(aten.upsample_trilinear3d_backward.default, gradient, *size, False, None, None, None)
