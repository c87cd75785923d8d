"""The losses give what PyTorch gives on the CPU."""

from collections.abc import Callable

import pytest
import torch

from tests.support.rules import check_rule
from tests.support.signed_zeros import check_signs
from tests.support.topologies import forms_of_a_tpu as forms_of_a_tpu
from tests.support.ways_to_run import WAYS

aten = torch.ops.aten

REDUCTIONS = (0, 1, 2)


def rand(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size) + 1))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", (True, False))
@pytest.mark.parametrize("size", ((5,), (6, 5), (2, 5, 3, 3)))
def test_nll_loss(reduction: int, weighted: bool, size: tuple[int, ...]) -> None:
    x = rand(*size).log_softmax(0 if len(size) == 1 else 1)
    shape = () if len(size) == 1 else (size[0], *size[2:])
    target = torch.randint(5, shape, generator=torch.Generator().manual_seed(3))
    if shape:
        target.view(-1)[0] = -100
    weight = rand(5).abs() + 0.5 if weighted else None
    forward, backward = aten.nll_loss_forward.default, aten.nll_loss_backward.default
    if len(size) == 4:
        forward, backward = aten.nll_loss2d_forward.default, aten.nll_loss2d_backward.default
    check_rule(forward, x, target, weight, reduction, -100)
    loss, total = forward(x, target, weight, reduction, -100)
    check_rule(backward, torch.randn_like(loss), x, target, weight, reduction, -100, total)


@pytest.mark.usefixtures("forms_of_a_tpu")
@pytest.mark.parametrize("size", ((5,), (6, 5), (2, 5, 3, 3)))
def test_nll_loss_of_a_tpu_takes_a_target_alone(size: tuple[int, ...]) -> None:
    x = rand(*size)
    target = torch.randint(5, size[:1] if len(size) == 2 else (size[0], *size[2:]) if len(size) > 2 else ())
    rows = x.movedim(0 if x.ndim == 1 else 1, -1).reshape(-1, 5)
    rows[0] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0])
    rows[-1] = torch.tensor([float("inf"), float("nan"), -0.0, 1e-40, -float("inf")])
    x = rows.reshape(*target.shape, 5).movedim(-1, 0 if x.ndim == 1 else 1)
    forward = aten.nll_loss2d_forward.default if x.ndim == 4 else aten.nll_loss_forward.default
    for special in range(5):
        target.view(-1)[0] = target.view(-1)[-1] = special
        check_rule(forward, x, target, None, 0, -100)


def test_a_mean_over_ignored_targets_alone_is_nan() -> None:
    x, target = rand(3, 4).log_softmax(1), torch.full((3,), -100)
    check_rule(aten.nll_loss_forward.default, x, target, None, 1, -100)


CASES = {
    "mse_loss": (),
    "smooth_l1_loss": (0.7,),
    "huber_loss": (0.7,),
    "soft_margin_loss": (),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", CASES)
def test_a_loss_between_two_tensors(name: str, reduction: int) -> None:
    x, target = rand(4, 3), rand(4, 3).roll(1, 0)
    if name == "soft_margin_loss":
        target = target.sign()
    forward, backward = getattr(aten, name).default, getattr(aten, f"{name}_backward").default
    check_rule(forward, x, target, reduction, *CASES[name])
    gradient = torch.ones_like(forward(x, target, reduction, *CASES[name])) * 1.5
    check_rule(backward, gradient, x, target, reduction, *CASES[name])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", (True, False))
def test_binary_cross_entropy(reduction: int, weighted: bool) -> None:
    x, target = rand(4, 3).sigmoid(), rand(4, 3).roll(1, 0).sigmoid()
    x[0, 0], x[0, 1], target[0, 0] = 0.0, 1.0, 1.0
    weight = rand(4, 3).abs() if weighted else None
    check_rule(aten.binary_cross_entropy.default, x, target, weight, reduction)
    gradient = torch.ones_like(aten.binary_cross_entropy(x, target, weight, reduction))
    check_rule(aten.binary_cross_entropy_backward.default, gradient, x, target, weight, reduction)


@pytest.mark.parametrize("loss", [torch.nn.functional.mse_loss, torch.nn.functional.smooth_l1_loss,
                                  torch.nn.functional.huber_loss])  # fmt: skip
def test_losses_of_nothing_have_gradients_of_nothing(loss: Callable[..., torch.Tensor]) -> None:
    x = torch.ones(0, 3, device="xla", requires_grad=True)
    loss(x, x.detach() * 2).backward()
    assert x.grad is not None and x.grad.shape == (0, 3)


def test_binary_cross_entropy_of_doubles_is_exact_to_a_few_roundings() -> None:
    # XLA's own logarithm of 1 - x is off by a hundred roundings near here.
    x = torch.linspace(0.38, 0.42, 4001, dtype=torch.float64)
    check_rule(aten.binary_cross_entropy.default, x, torch.zeros_like(x), None, 0, rtol=1e-15, atol=0)


@pytest.mark.parametrize("way", WAYS)
def test_the_slope_of_a_target_without_others_is_taken_from_zero(way: str) -> None:
    def function(x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
        target = torch.zeros((), dtype=torch.int64, device=x.device)
        return [aten.multi_margin_loss_backward(grad * sign, x, target, 1, 1.0, None, 1) for sign in (1, -1)]

    check_signs(way, function, torch.tensor([2.0, 0.0, -0.0]), torch.tensor(1.0))
