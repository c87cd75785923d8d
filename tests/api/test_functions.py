"""`torch_xla.core.functions` and buckets between processes: what one process computes of all the data."""

from typing import Any

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from tests.support.fleet import fleet_of

COUNT = 2
# Unequal batches, of values far from zero.
BATCHES = [torch.randn(n, 3, 2, generator=torch.Generator().manual_seed(n)) * 2 + 100 for n in (3, 5)]


def normalize() -> Any:
    rank = xr.global_ordinal()
    norm = xf.SyncBatchNorm(3, momentum=0.3).to("xla")
    x = BATCHES[rank].to("xla").requires_grad_()
    y = norm(x)
    (y * torch.arange(2.0, device="xla")).square().sum().backward()
    torch_xla.sync()
    gradients = [each.grad.cpu() for each in (x, norm.weight, norm.bias)]
    statistics = norm.running_mean.cpu(), norm.running_var.cpu()
    return y.detach().cpu(), gradients, statistics, norm.eval()(x).detach().cpu()


def multiply() -> Any:
    rank = xr.global_ordinal()
    w, xs = matrices()
    own = w.chunk(COUNT, 1)[rank].to("xla").requires_grad_()
    x = xs[rank].to("xla").requires_grad_()
    found = []
    for split in (1, 2):
        own.grad = x.grad = None
        product = xf.distributed_mm(own, x, split)
        (product * (rank + 1)).square().sum().backward()
        found.append((product.detach().cpu(), own.grad.cpu(), x.grad.cpu()))
    return found


def matrices() -> tuple[torch.Tensor, list[torch.Tensor]]:
    torch.manual_seed(3)
    return torch.randn(3, 4), [torch.randn(4, 6) for _ in range(COUNT)]


def bring() -> Any:
    rank = xr.global_ordinal()
    given = [torch.full((n,), float(rank), device="xla") for n in (200_000, 100_000, 3)]
    sizes: list[int] = []

    def gather(tensors: Any, outputs: Any) -> Any:
        sizes.append(1 if isinstance(tensors, torch.Tensor) else len(tensors))
        return xm.all_gather(tensors, output=outputs)

    into = [torch.zeros(n * COUNT, device="xla") for n in (200_000, 100_000, 3)]
    found = xm.CoalescingBuckets(gather, given, into, bucket_cap_mb=1)()
    return sizes, found[2].tolist(), into[0][[0, -1]].tolist(), into[2].tolist()


def everything() -> Any:
    return normalize(), multiply(), bring()


@pytest.mark.slow
def test_processes_compute_what_one_computes_of_all_data() -> None:
    answers = fleet_of(COUNT).run(everything, seconds=300)
    norm = nn.BatchNorm1d(3, momentum=0.3)
    x = torch.cat(BATCHES).requires_grad_()
    y = norm(x)
    (y * torch.arange(2.0)).square().sum().backward()
    parts = zip(answers, y.detach().split([3, 5]), x.grad.split([3, 5]), strict=True)
    for ((own, gradients, statistics, evaluated), _, _), expected, gradient in parts:
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(gradients[0], gradient, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(statistics, (norm.running_mean, norm.running_var), rtol=1e-5, atol=1e-5)
        assert evaluated.isfinite().all()
    for index, parameter in ((1, norm.weight), (2, norm.bias)):
        total = sum(found[0][1][index] for found in answers)
        torch.testing.assert_close(total, parameter.grad, rtol=1e-4, atol=1e-4)

    w, xs = matrices()
    w.requires_grad_()
    inputs = [each.clone().requires_grad_() for each in xs]
    sum(((w @ each) * (rank + 1)).square().sum() for rank, each in enumerate(inputs)).backward()
    for rank, (_, products, _) in enumerate(answers):
        for product, of_w, of_x in products:
            torch.testing.assert_close(product, (w @ xs[rank]).detach())
            torch.testing.assert_close(of_w, w.grad.chunk(COUNT, 1)[rank])
            torch.testing.assert_close(of_x, inputs[rank].grad)

    assert [buckets for _, _, buckets in answers] == [
        ([1, 2], [0.0] * 3 + [1.0] * 3, [0.0, 1.0], [0.0] * 3 + [1.0] * 3)
    ] * 2


def test_sizes_that_do_not_fit_are_refused() -> None:
    w, x = torch.ones(2, 3, device="xla"), torch.ones(4, 5, device="xla")
    with pytest.raises(ValueError, match=r"w has shape \[2, 3\] and x \[4, 5\]"):
        xf.distributed_mm(w, x)
    with pytest.raises(ValueError, match="split is 2; it must divide m, the 5 columns"):
        xf.distributed_mm(w, x[:3], split=2)
    with pytest.raises(ValueError, match=r"the second of 4, got \[4, 5\]"):
        xf.SyncBatchNorm(4).to("xla")(x)
    with pytest.raises(ValueError, match="1 tensors and 2 outputs"):
        xm.CoalescingBuckets(lambda tensors, outputs: tensors, [w], [w, w])


@pytest.mark.parametrize(
    ("reduce_type", "expected"), [("sum", [6, 60]), ("mul", [6, 60]), ("min", [6, 60]), ("max", [6, 60])]
)
def test_the_gradient_of_a_reduction_is_that_of_the_own_result(reduce_type: str, expected: list[float]) -> None:
    x = torch.tensor([2.0, 0.5], device="xla", requires_grad=True)
    y = xf.AllReduce.apply(x, reduce_type, 3.0, None)  # type: ignore[no-untyped-call]
    assert y.tolist() == [6.0, 1.5]
    (y * torch.tensor([2.0, 20.0], device="xla")).sum().backward()
    assert x.grad is not None and x.grad.tolist() == expected


def test_and_and_or_have_no_floats() -> None:
    x = torch.ones(2, device="xla", requires_grad=True)
    with pytest.raises(ValueError, match="reduce_type 'and' combines the bits of integers and bools"):
        xf.all_reduce("and", x)
    assert xf.all_reduce("or", x.int()).tolist() == [1, 1]


def test_a_bucket_of_one_tensor_is_the_tensor() -> None:
    given = [torch.ones(n) for n in (3 * 2**17, 100, 5 * 2**17, 3 * 2**17, 2**17, 2**18)]  # 1 MiB is 2**18 floats
    seen: list[Any] = []

    def reduce(tensors: Any, outputs: Any) -> Any:
        seen.append([t.numel() for t in tensors] if isinstance(tensors, list) else tensors.numel())
        return tensors

    found = xm.CoalescingBuckets(reduce, given, bucket_cap_mb=1)()
    assert all(one is other for one, other in zip(found, given, strict=True))
    assert seen == [3 * 2**17, 100, 5 * 2**17, 3 * 2**17, 2**17, 2**18]
    seen.clear()
    xm.CoalescingBuckets(reduce, given[1:2] + given[:1] + given[1:2] * 2, bucket_cap_mb=1)()
    assert seen == [[100, 3 * 2**17], [100, 100]]  # a large one joins what little there is
