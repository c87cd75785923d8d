"""Sampling at the points of a grid, compared with PyTorch on the CPU."""

from itertools import product

import pytest
import torch

from tests.support.rules import apply_rule
from torch_xla._engine.lowering.images import grid_sampler  # noqa: F401

aten = torch.ops.aten
OPS = {2: aten.grid_sampler_2d, 3: aten.grid_sampler_3d}
BACKWARD = {2: aten.grid_sampler_2d_backward, 3: aten.grid_sampler_3d_backward}
SETTINGS = [
    (dims, mode, padding, align)
    for dims, mode, padding, align in product((2, 3), (0, 1, 2), (0, 1, 2), (False, True))
    if (dims, mode) != (3, 2)  # PyTorch has no cubic sampling in three dimensions
]


def operands(dims: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """An image, a grid that reaches far out of it on both sides, and a gradient."""
    generator = torch.Generator().manual_seed(dims)
    image = torch.randn(2, 3, *(5, 4, 3)[:dims], generator=generator, dtype=torch.float64)
    grid = torch.rand(2, *(4, 6, 2)[:dims], dims, generator=generator, dtype=torch.float64) * 6 - 3
    grad = torch.randn(2, 3, *(4, 6, 2)[:dims], generator=generator, dtype=torch.float64)
    return image.to(dtype), grid.to(dtype), grad.to(dtype)


# Each mode with each padding; whether corners are aligned alternates, and the other half is slow.
OFTEN = [setting for setting in SETTINGS if setting[3] == ((setting[1] + setting[2]) % 2 == 0)]


@pytest.mark.parametrize(
    "setting", [pytest.param(each, marks=[pytest.mark.slow] * (each not in OFTEN)) for each in SETTINGS], ids=str
)
def test_samples_and_gradients_agree_with_pytorch(setting: tuple[int, int, int, bool]) -> None:
    dims, *settings = setting
    image, grid, grad = operands(dims, torch.float64)
    expected = OPS[dims].default(image, grid, *settings)
    torch.testing.assert_close(apply_rule(OPS[dims].default, image, grid, *settings), expected)
    for mask in ([True, True], [False, True]):
        ours = apply_rule(BACKWARD[dims].default, grad, image, grid, *settings, mask)
        for our, their in zip(ours, BACKWARD[dims].default(grad, image, grid, *settings, mask), strict=True):
            if their is None:
                assert our is None
            else:
                torch.testing.assert_close(our, their)


@pytest.mark.slow  # as programs of users are compiled: quickly compiled, rounding differs in the last bit
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_other_dtypes_are_as_near_to_the_truth_as_pytorch(mode: int, dtype: torch.dtype) -> None:
    image, grid, _ = operands(2, dtype)
    exact = OPS[2].default(image.double(), grid.double(), mode, 1, False)
    ours = apply_rule(OPS[2].default, image, grid, mode, 1, False).to(dtype)
    theirs = OPS[2].default(image, grid, mode, 1, False)
    resolution = torch.finfo(dtype).eps
    assert (ours.double() - exact).abs().max() <= (theirs.double() - exact).abs().max() + resolution


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize(("mode", "padding"), list(product((0, 1, 2), (0, 1))), ids=str)
def test_points_that_are_no_points_agree_with_pytorch(mode: int, padding: int, align: bool) -> None:
    image, _, _ = operands(2, torch.float32)
    nan, inf = float("nan"), float("inf")
    points = [[nan, 0], [0, nan], [inf, 0], [0, -inf], [1e20, 0], [0, -3e9], [1, 1], [-1, -1]]
    grid = torch.tensor(points).reshape(1, 2, 4, 2).expand(2, 2, 4, 2)
    expected = OPS[2].default(image, grid, mode, padding, align)
    torch.testing.assert_close(apply_rule(OPS[2].default, image, grid, mode, padding, align), expected, equal_nan=True)


def test_an_infinite_pixel_does_not_leak_into_samples_outside_of_the_image() -> None:
    image = torch.full((1, 1, 2, 2), float("inf"))
    grid = torch.tensor([[-5.0, -5.0], [0.3, 0.2]]).reshape(1, 1, 2, 2)
    expected = OPS[2].default(image, grid, 0, 0, False)
    torch.testing.assert_close(apply_rule(OPS[2].default, image, grid, 0, 0, False), expected, equal_nan=True)


@pytest.mark.parametrize("shapes", [((0, 3, 4, 4), (0, 2, 2, 2)), ((2, 3, 4, 4), (2, 0, 2, 2))], ids=str)
def test_no_samples_have_zero_gradients(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    image, grid = torch.ones(shapes[0]), torch.ones(shapes[1])
    expected = OPS[2].default(image, grid, 0, 0, False)
    assert apply_rule(OPS[2].default, image, grid, 0, 0, False).shape == expected.shape
    ours = apply_rule(BACKWARD[2].default, expected, image, grid, 0, 0, False, [True, True])
    for our, their in zip(ours, (torch.zeros_like(image), torch.zeros_like(grid)), strict=True):
        torch.testing.assert_close(our, their)
