"""Pools give what PyTorch gives on the CPU, indices included."""

from typing import Any

import pytest
import torch

import torch_xla
from tests.support.rules import check_rule
from tests.support.signed_zeros import check_signs
from tests.support.topologies import forms_of_a_tpu as forms_of_a_tpu
from tests.support.ways_to_run import WAYS

aten = torch.ops.aten

# kernel, stride, padding, dilation, ceil_mode
MAX_CASES: tuple[tuple[Any, ...], ...] = (
    ([2, 2], [2, 2], [0, 0], [1, 1], False),
    ([3, 3], [2, 2], [1, 1], [1, 1], False),
    ([3, 2], [2, 1], [1, 0], [1, 2], True),
    ([2, 3], [], [0, 1], [1, 1], True),
    ([2, 2], [3, 5], [0, 0], [1, 1], False),
)
AVG_CASES: tuple[tuple[Any, ...], ...] = (
    ([2, 2], [2, 2], [0, 0], False, True, None),
    ([3, 3], [2, 2], [1, 1], True, True, None),
    ([3, 3], [2, 2], [1, 1], True, False, None),
    ([3, 2], [], [1, 0], False, True, 5),
)


def rand(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


@pytest.mark.usefixtures("forms_of_a_tpu")
@pytest.mark.parametrize("case", MAX_CASES)
@pytest.mark.parametrize(
    "special", [[], [torch.nan], [torch.nan, torch.nan, torch.inf], [-torch.inf] * 64, [0.0, -0.0]]
)
def test_max_pool_of_a_tpu(case: tuple[Any, ...], special: list[float]) -> None:
    x = rand(2, 3, 7, 8).round()  # with equal elements in a window
    x.view(-1)[7 : 7 + len(special)] = torch.tensor(special)
    check_rule(aten.max_pool2d_with_indices.default, x, *case)
    out, indices = aten.max_pool2d_with_indices(x, *case)
    check_rule(aten.max_pool2d_with_indices_backward.default, rand(*out.shape), x, *case, indices)


@pytest.mark.parametrize("case", MAX_CASES)
def test_max_pool_and_its_backward(case: tuple[Any, ...]) -> None:
    x = rand(2, 3, 7, 8)
    x[0, 0, 0, :4] = 1.0
    check_rule(aten.max_pool2d_with_indices.default, x, *case)
    out, indices = aten.max_pool2d_with_indices(x, *case)
    check_rule(aten.max_pool2d_with_indices_backward.default, rand(*out.shape), x, *case, indices)


def test_max_pool_lets_nan_win() -> None:
    x = rand(1, 4, 4)
    x[0, 1, 1] = torch.nan
    check_rule(aten.max_pool2d_with_indices.default, x, [2, 2], [2, 2])


def test_max_pool_in_three_dimensions() -> None:
    x = rand(1, 2, 4, 5, 6)
    case = ([2, 2, 2], [2, 2, 2], [0, 1, 0], [1, 1, 1], False)
    check_rule(aten.max_pool3d_with_indices.default, x, *case)
    out, indices = aten.max_pool3d_with_indices(x, *case)
    check_rule(aten.max_pool3d_with_indices_backward.default, rand(*out.shape), x, *case, indices)


@pytest.mark.parametrize("case", AVG_CASES)
def test_avg_pool_and_its_backward(case: tuple[Any, ...]) -> None:
    x = rand(2, 3, 7, 8)
    check_rule(aten.avg_pool2d.default, x, *case)
    gradient = rand(*aten.avg_pool2d(x, *case).shape)
    check_rule(aten.avg_pool2d_backward.default, gradient, x, *case)


def test_avg_pool_in_three_dimensions() -> None:
    x = rand(1, 2, 4, 5, 6)
    case = ([2, 2, 2], [2, 2, 2], [0, 1, 0], False, True, None)
    check_rule(aten.avg_pool3d.default, x, *case)
    check_rule(aten.avg_pool3d_backward.default, rand(*aten.avg_pool3d(x, *case).shape), x, *case)


@pytest.mark.parametrize("output", ([1, 1], [3, 4], [7, 2], [5, 3]))
def test_adaptive_pools_and_their_backward(output: list[int]) -> None:
    x = rand(2, 3, 7, 8)
    check_rule(aten._adaptive_avg_pool2d.default, x, output)
    check_rule(aten._adaptive_avg_pool2d_backward.default, rand(2, 3, *output), x)
    check_rule(aten.adaptive_max_pool2d.default, x, output)
    check_rule(aten.adaptive_max_pool2d.default, x[:0], output)
    _, indices = aten.adaptive_max_pool2d(x, output)
    check_rule(aten.adaptive_max_pool2d_backward.default, rand(2, 3, *output), x, indices)


# Volumes smaller than the kernel are refused.
@pytest.mark.parametrize(
    ("dims", "size", "kernel", "stride", "padding"),
    [(dims, *case) for dims in (1, 2) for case in ((2, 640, 640, 0), (5, 9, 2, 4), (3, 2, 1, 1), (4, 4, 4, 0))]
    + [(3, 3, 2, 1, 1), (3, 4, 4, 4, 0)],
)
def test_windows_larger_than_the_image_cost_what_they_show(
    dims: int, size: int, kernel: int, stride: int, padding: int
) -> None:
    pool = getattr(torch.nn.functional, f"avg_pool{dims}d")

    def pooled(device: str) -> tuple[torch.Tensor, Any]:
        x = torch.arange(float(2 * size**dims)).view(1, 2, *[size] * dims).to(device).requires_grad_()
        y = pool(x, kernel, stride, padding, ceil_mode=True, count_include_pad=False)
        (gradient,) = torch.autograd.grad(y, x, torch.arange(1.0, y.numel() + 1).view(y.shape).to(device))
        return y.detach(), gradient

    for ours, theirs in zip(pooled("xla"), pooled("cpu"), strict=True):
        assert torch_xla._XLAC._get_xla_tensors_hlo([ours]).count("\n") < 300
        torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("dilation", [1, 2])
def test_of_minus_infinity_alone_the_first_place_in_the_image_is_the_largest(dilation: int) -> None:
    x = torch.full((1, 1, 5, 7), -torch.inf)
    x[..., 3:, 4:] = torch.arange(6.0).view(2, 3)
    ours, theirs = (
        torch.nn.functional.max_pool2d(x.to(device), 3, 2, 1, dilation, return_indices=True)
        for device in ("xla", "cpu")
    )
    assert ours[0].cpu().equal(theirs[0]) and ours[1].cpu().equal(theirs[1])


@pytest.mark.parametrize("way", WAYS)
def test_averages_and_their_gradients_are_added_to_zeros(way: str) -> None:
    def function(x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
        volume = x.view(1, 2, 2, 6, 5), grad.view(1, 2, 1, 3, 2)
        return [
            aten.avg_pool2d_backward(grad, x[:, :, :6, :4], [2, 2], [2, 2], [0, 0], False, True, None),
            aten.avg_pool2d_backward(grad[:, :, :, :1], x, [3, 3], [4, 4], [0, 0], False, True, None),
            aten.avg_pool3d_backward(volume[1], volume[0], [2, 2, 2], [2, 2, 3], [0, 0, 0], False, True, None),
            aten._adaptive_avg_pool2d_backward(grad, x[:, :, :6, :4]),
            aten._adaptive_avg_pool2d_backward(grad, x),
            aten._adaptive_avg_pool3d_backward(volume[1], volume[0]),
            aten.avg_pool2d(x, [2, 2], [2, 2], [0, 0], False, True, -2),
            aten.avg_pool3d(volume[0], [2, 2, 2], [2, 2, 2], [0, 0, 0], False, True, -2),
        ]

    check_signs(
        way, function, torch.full((1, 2, 12, 5), -0.0), torch.tensor([-0.0, 1.0, 0.0]).repeat(4).view(1, 2, 3, 2)
    )
