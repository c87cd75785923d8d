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


@pytest.mark.parametrize("scales", [(1.1, 1.2), (1.1, None), (None, 1.2), (1.1,)], ids=str)
def test_a_dimension_that_keeps_its_size_keeps_its_pixels_whatever_the_scale(scales: tuple[float | None, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    image, gradient = torch.randn(2, 3, 5, 4, generator=generator), torch.randn(2, 3, 5, 9, generator=generator)
    check_rule(aten.upsample_bilinear2d.default, image, [5, 9], False, *scales, rtol=1e-4, atol=1e-5)
    backward = aten.upsample_bilinear2d_backward.default
    check_rule(backward, gradient, [5, 9], [2, 3, 5, 4], False, *scales, rtol=1e-4, atol=1e-5)
    check_rule(aten.upsample_linear1d.default, image[0], [4], False, scales[0])
    cube, size = image.reshape(1, 2, 3, 5, 4), [3, 7, 4]
    check_rule(aten.upsample_trilinear3d.default, cube, size, False, *scales, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("channels", [3, 6])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_images_of_bytes_are_resized_in_the_arithmetic_of_bytes(mode: str, channels: int, align_corners: bool) -> None:
    image = torch.randint(256, (2, channels, 13, 9), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    op, antialiased = (getattr(aten, name).default for name in (f"upsample_{mode}2d", f"_upsample_{mode}2d_aa"))
    for size in ((5, 20), (13, 4), (30, 9)):
        for resize in (op, antialiased):
            check_rule(resize, image, size, align_corners, rtol=0, atol=0)
    check_rule(op, image, [19, 13], align_corners, 1.5, 1.5, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_images_of_floats(mode: str, dtype: torch.dtype) -> None:
    image = torch.randn(2, 3, 7, 9, generator=torch.Generator().manual_seed(0)).to(dtype)
    op = getattr(aten, f"upsample_{mode}2d").default
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    for align_corners in (False, True):
        for size in ((5, 20), (7, 9), (1, 1)):
            check_rule(op, image, size, align_corners, **close)
    check_rule(op, image, [10, 6], False, 1.5, 0.7, **close)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_an_image_without_pixels_is_refused_as_on_the_cpu(mode: str, align_corners: bool) -> None:
    choices: list[dict[str, Any]] = [{"size": (0, 2)}, {"scale_factor": 0.1}]
    for options in choices:
        for device in ("cpu", "xla"):
            with pytest.raises(RuntimeError, match="Input and output sizes should be greater than 0"):
                torch.nn.functional.interpolate(
                    torch.ones(1, 2, 4, 4, device=device), mode=mode, align_corners=align_corners, **options
                )
