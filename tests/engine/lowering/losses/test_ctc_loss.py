"""Connectionist temporal classification, compared with PyTorch on the CPU."""

from typing import Any

import pytest
import torch

from tests.support.rules import apply_rule
from torch_xla._engine.lowering.losses import ctc_loss  # noqa: F401

aten = torch.ops.aten

# targets, input lengths, target lengths, blank
CASES: list[tuple[Any, ...]] = [
    ([[1, 2, 3, 1], [2, 2, 0, 0]], [8, 7], [4, 2], 0),
    ([[1, 1, 1, 1], [2, 3, 9, -4]], [8, 6], [4, 2], 0),  # repeated labels need blanks; no labels behind the end
    ([1, 2, 3, 1, 2, 2], [8, 7], [4, 2], 0),  # one behind the other
    ([[0, 1, 0], [2, 1, 0]], [8, 5], [3, 3], 4),
    ([[1, 2, 3], [3, 0, 0]], [2, 4], [3, 1], 0),  # too long for the input: impossible
    ([[1, 2, 3], [3, 0, 0]], [8, 4], [0, 1], 0),
    ([[1, 2, 3], [3, 0, 0]], [8, 0], [3, 0], 0),
    ([[], []], [8, 5], [0, 0], 0),
    ([], [8, 5], [0, 0], 0),
]


@pytest.mark.parametrize(
    "case", [*CASES[:3], *(pytest.param(case, marks=pytest.mark.slow) for case in CASES[3:])], ids=str
)
@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float64], ids=str)
def test_losses_and_gradients_agree_with_pytorch(case: tuple[Any, ...], dtype: torch.dtype) -> None:
    labels, ends, lengths, blank = case
    log_probs = torch.randn(8, 2, 5, generator=torch.Generator().manual_seed(0), dtype=dtype).log_softmax(-1)
    args = (log_probs, torch.tensor(labels, dtype=torch.int64), ends, lengths)
    loss, alpha = apply_rule(aten._ctc_loss.default, *args, blank)
    expected, expected_alpha = aten._ctc_loss.default(*args, blank)
    torch.testing.assert_close(loss, expected)
    assert alpha.shape == expected_alpha.shape
    for sample in range(2):
        # Behind the ends PyTorch leaves what memory held.
        window = sample, slice(ends[sample]), slice(2 * lengths[sample] + 1)
        torch.testing.assert_close(alpha[window], expected_alpha[window])
    grad = torch.tensor([1.5, -0.5], dtype=dtype)
    for zero_infinity in (False, True):
        backward = (grad, *args, expected, expected_alpha, blank, zero_infinity)
        ours = apply_rule(aten._ctc_loss_backward.default, *backward)
        theirs = aten._ctc_loss_backward.default(*backward)
        torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=1e-5, atol=1e-6)


def test_classes_without_probability_agree_with_pytorch() -> None:
    log_probs = torch.randn(6, 2, 5).log_softmax(-1)
    log_probs[2, 0, 3] = log_probs[3, 1, 1] = -float("inf")
    args = (log_probs, torch.tensor([[1, 2], [1, 4]]), [6, 6], [2, 2])
    loss, alpha = aten._ctc_loss.default(*args)
    torch.testing.assert_close(apply_rule(aten._ctc_loss.default, *args)[0], loss)
    backward = (torch.ones(2), *args, loss, alpha, 0)
    ours = apply_rule(aten._ctc_loss_backward.default, *backward)
    torch.testing.assert_close(ours, aten._ctc_loss_backward.default(*backward), equal_nan=True, rtol=1e-5, atol=1e-6)


def test_a_long_sample_underflows_nowhere() -> None:
    log_probs = torch.randn(400, 1, 30).mul(4).log_softmax(-1)
    args = (log_probs, torch.randint(1, 30, (1, 60)), [400], [60])
    loss, alpha = aten._ctc_loss.default(*args)
    ours, _ = apply_rule(aten._ctc_loss.default, *args)
    torch.testing.assert_close(ours, loss)
    backward = (torch.ones(1), *args, loss, alpha, 0)
    exact_args = (log_probs.double(), *args[1:])
    exact = aten._ctc_loss_backward.default(
        torch.ones(1).double(), *exact_args, *aten._ctc_loss.default(*exact_args), 0
    )
    ours = apply_rule(aten._ctc_loss_backward.default, *backward).double()
    theirs = aten._ctc_loss_backward.default(*backward).double()
    assert (ours - exact).abs().max() <= 4 * (theirs - exact).abs().max()


def test_the_gradient_is_not_rounded_like_the_loss() -> None:
    """Of each time, the shares of all paths are one: a loss of some hundreds must not show in them."""
    log_probs = torch.randn(60, 3, 20).log_softmax(-1)
    args = (log_probs, torch.randint(1, 20, (3, 25)), [60, 50, 40], [25, 20, 0])
    loss, alpha = apply_rule(aten._ctc_loss.default, *args)
    slopes = apply_rule(aten._ctc_loss_backward.default, torch.ones(3), *args, loss, alpha, 0)
    torch.testing.assert_close(slopes.sum(-1), torch.zeros(60, 3), rtol=0, atol=1e-6)
