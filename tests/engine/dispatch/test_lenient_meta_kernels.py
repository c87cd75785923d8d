"""Calls that the CPU takes are taken, though PyTorch's own meta kernels refuse them or give another size."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.support.ways_to_run import made_to_run
from torch_xla._engine.dispatch import lenient_meta_kernels

aten = torch.ops.aten


def unreduced(x: torch.Tensor, reduction: int) -> object:
    """Losses of nine numbers, with a `reduction` that is none of PyTorch's."""
    target, labels = x[0].long() * 0 + 1, x.long() * 0 - 1
    return (
        aten.nll_loss_forward(x, target, None, reduction, -100),
        aten.nll_loss2d_forward(x.view(1, 3, 3, 1), x.view(1, 3, 3)[..., :1].long() * 0, None, reduction, -100),
        aten.binary_cross_entropy(x.sigmoid(), x.sigmoid(), None, reduction),
        aten.huber_loss(x, 2 * x, reduction),
        aten.soft_margin_loss(x, 2 * x, reduction),
        aten.multi_margin_loss(x, target, 1, 1, None, reduction),
        aten.multilabel_margin_loss_forward(x, labels, reduction),
    )


def of_nothing(x: torch.Tensor) -> object:
    """Operators that look at no dimension of a tensor without elements."""
    return [
        (torch.roll(e, 1), torch.roll(e, 1, 5), torch.roll(e, (1, 2), (-7, 9)), torch.cummax(e, 5), torch.cummin(e, -7))
        for e in (x[:0], x[:, :0], x[0, :0], x[:0, :0].bool())
    ]


def of_one_sample(x: torch.Tensor) -> object:
    """Losses of a sample without a batch, whose class is in a list."""
    target = x[0, :1].long() * 0 + 2
    losses = [F.nll_loss(x[1], target, x[2] + 2, reduction=each) for each in ("none", "mean", "sum")]
    return losses, F.nll_loss(x[1, :1], target - 2)


def of_dimensions_from_the_end(x: torch.Tensor) -> object:
    """Norms of no rows, along what is no empty dimension."""
    infinity = float("inf")
    norms = [torch.linalg.vector_norm(x[:0], order, -1) for order in (infinity, -infinity, 2, -1)]
    return norms, x[None, :0].norm(infinity, dim=(0, -1)), x[:0].norm(infinity, dim=-1, keepdim=True)


def leaves(results: object) -> list[torch.Tensor]:
    return torch.utils._pytree.tree_leaves(results)


# Under torch.compile Dynamo's own meta kernels refuse them, on the CPU as well.
@pytest.mark.parametrize("way", ["recorded", "eager", "replay"])
@pytest.mark.parametrize(
    "call",
    [lambda x: unreduced(x, 3), lambda x: unreduced(x, -1), of_nothing, of_one_sample, of_dimensions_from_the_end],
)
def test_results_are_those_of_the_cpu(call: Any, way: str) -> None:
    operand = torch.arange(9.0).reshape(3, 3).cos()
    with made_to_run(way, call) as run:
        ours = leaves(run(operand.to("xla")))
    for found, expected in zip(ours, leaves(call(operand)), strict=True):
        assert found.shape == expected.shape and (found.stride() == expected.stride() or not found.numel())
        torch.testing.assert_close(found.cpu(), expected)


def test_a_dimension_out_of_range_of_something_is_refused() -> None:
    for device in ("cpu", "xla"):
        x = torch.ones(2, 3, device=device)
        for wrong in (
            lambda x: torch.roll(x, 1, 2),
            lambda x: torch.cummax(x, -3),
            lambda x: torch.roll(x[:0], (1, 1), 0),
            lambda x: torch.roll(x[:0], (1, 1)),
        ):
            with pytest.raises((IndexError, RuntimeError)):
                wrong(x)


def test_gradients_of_the_usual_losses_are_as_before() -> None:
    found = []
    for device in ("cpu", "xla"):
        x = torch.arange(6.0).reshape(2, 3).sin().to(device).requires_grad_()
        (F.cross_entropy(x, torch.tensor([0, 2], device=device)) + F.huber_loss(x, 2 * x.detach())).backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1].cpu(), found[0])


def test_each_kernel_is_around_the_one_that_was_there() -> None:
    asked = []
    kernels = lenient_meta_kernels.around({"aten::roll": lambda *args: asked.append(args)})
    kernels["aten::roll"](torch.ones(2), [1], [0])
    assert len(asked) == 1 and set(kernels) >= {"aten::roll", "aten::cummax", "aten::nll_loss_forward"}
