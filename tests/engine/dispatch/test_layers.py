"""Pooling with indices and its inverse, transposed convolutions and CTC, as modules and functions of `torch.nn`."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.twins import check_same
from torch_xla.debug import metrics


def values(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def with_gradients(result: torch.Tensor, *leaves: torch.Tensor) -> list[torch.Tensor]:
    slopes = (torch.arange(result.numel()) % 7 - 2.0).reshape(result.shape).to(result)
    return [result.detach(), *torch.autograd.grad(result, leaves, slopes)]


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_what_was_pooled_with_indices_is_put_back(dims: int) -> None:
    pool, unpool = getattr(F, f"max_pool{dims}d"), getattr(F, f"max_unpool{dims}d")

    def program(d: str) -> Any:
        results = []
        for kernel, stride, padding, ceil in ((2, 2, 0, False), (3, 2, 1, False), (2, 2, 0, True)):
            for lead in ((2, 3), (3,)):  # with and without a batch
                x = values(*lead, *(9, 8, 7)[:dims]).to(d).requires_grad_()
                pooled, indices = pool(x, kernel, stride, padding, ceil_mode=ceil, return_indices=True)
                back = unpool(pooled, indices, kernel, stride, padding, output_size=x.shape[-dims:])
                results += [indices, pooled.detach(), *with_gradients(back, x)]
        return results

    check_same(program)
    assert not metrics.executed_fallback_ops()


@pytest.mark.parametrize("dims", [2, 3])
def test_fractional_pools_take_given_samples(dims: int) -> None:
    def program(d: str) -> Any:
        samples = torch.rand(2, 3, dims, generator=torch.Generator().manual_seed(1)).to(d)
        x = values(2, 3, *(9, 8, 7)[:dims]).to(d).requires_grad_()
        results = []
        for size in ({"output_size": (4, 3, 5)[:dims]}, {"output_ratio": (0.5, 0.7, 0.6)[:dims]}):
            pool: Any = getattr(nn, f"FractionalMaxPool{dims}d")
            pooled, indices = pool(2, return_indices=True, _random_samples=samples, **size)(x)
            results += [indices, *with_gradients(pooled, x)]
        return results

    check_same(program)
    assert not metrics.executed_fallback_ops()


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_transposed_convolutions_take_every_setting(dims: int) -> None:
    layers = [
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"stride": 2, "groups": 2, "bias": False},
        {"stride": 3, "dilation": 2, "output_padding": 2, "padding": 1},
        {"stride": 1, "dilation": 2, "output_padding": 1, "groups": 4},
    ]

    def program(d: str) -> Any:
        results = []
        for number, settings in enumerate(layers):
            torch.manual_seed(number)
            layer: nn.Module = getattr(nn, f"ConvTranspose{dims}d")(4, 8, 3, **settings).to(d)
            x = values(2, 4, *(5, 4, 3)[:dims]).to(d).requires_grad_()
            results += with_gradients(layer(x), x, *layer.parameters())
        layer = getattr(nn, f"ConvTranspose{dims}d")(4, 2, 3, stride=2)
        torch.manual_seed(9)
        for parameter in layer.parameters():
            nn.init.normal_(parameter)
        longest = [11, 10, 8][:dims]  # the output's size may be asked for
        results.append(layer.to(d)(values(2, 4, *(5, 4, 3)[:dims]).to(d), output_size=longest).detach())
        return results

    check_same(program, strides=False, rtol=1e-4, atol=1e-4)
    assert not metrics.executed_fallback_ops()


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_ctc_takes_targets_in_both_forms(reduction: str) -> None:
    padded = torch.tensor([[1, 2, 2, 0], [3, 4, 1, 2], [1, 0, 0, 0], [2, 2, 2, 2]])
    lengths = [3, 4, 0, 4]  # one target is empty; the last is longer than what was heard of it
    joined = torch.cat([row[:length] for row, length in zip(padded, lengths, strict=True)])

    def program(d: str) -> Any:
        results = []
        for targets, zero_infinity in itertools.product((padded, joined), (False, True)):
            x = values(9, 4, 5, seed=3).to(d).requires_grad_()
            loss = F.ctc_loss(
                x.log_softmax(-1),
                targets.to(d),
                [9, 8, 7, 3],
                lengths,
                reduction=reduction,
                zero_infinity=zero_infinity,
            )
            results += with_gradients(loss, x)
        single = values(9, 5, seed=4).to(d).requires_grad_()
        loss = F.ctc_loss(single.log_softmax(-1), padded[0, :3].to(d), torch.tensor(9), torch.tensor(3))
        return [*results, *with_gradients(loss, single)]

    check_same(program, strides=False, rtol=1e-4, atol=1e-5)
    assert not metrics.executed_fallback_ops()
