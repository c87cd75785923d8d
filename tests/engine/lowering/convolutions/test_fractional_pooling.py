"""Pooling over windows that random numbers place, compared with PyTorch for the same numbers."""

import pytest
import torch

from tests.support.rules import apply_rule, check_rule

aten = torch.ops.aten


@pytest.mark.parametrize("lead", [(2, 3), (3,), (0, 3)])
@pytest.mark.parametrize("dims", [2, 3])
def test_windows_lie_where_the_numbers_place_them(dims: int, lead: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(dims)
    x = torch.randn(*lead, *(9, 7, 8)[:dims], generator=generator)
    samples = torch.rand(lead[0] if len(lead) > 1 else 1, 3, dims, generator=generator)
    arguments = [2, 3, 2][:dims], [4, 3, 5][:dims]
    forward, backward = (getattr(aten, f"fractional_max_pool{dims}d{form}").default for form in ("", "_backward"))
    check_rule(forward, x, *arguments, samples)
    result, indices = forward(x, *arguments, samples)
    if x.numel():
        check_rule(backward, result.cos(), x, *arguments, indices)
        x.view(-1)[5:40:9] = torch.nan
        check_rule(forward, x, *arguments, samples)


def test_one_window_ends_with_the_image() -> None:
    x = torch.arange(20.0).reshape(1, 4, 5)
    result, indices = apply_rule(aten.fractional_max_pool2d.default, x, [2, 2], [1, 1], torch.full((1, 1, 2), 0.3))
    assert (result.item(), indices.item()) == (19.0, 19)
