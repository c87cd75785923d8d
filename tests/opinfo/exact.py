"""The exact results of operators whose CPU kernels in PyTorch have only seven to ten digits, in float64 too.

A sixth is a float32 in the gradient of `hardsigmoid`, and the trigamma function, which the second derivatives of
`lgamma` are made of, is known to ten digits. SciPy knows them all, and these can be differentiated as often as asked.
CTC's gradient is computed from logarithms of very small numbers, which leaves it ten times the error of ours.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor


class _Polygamma(torch.autograd.Function):
    """The derivative of `lgamma` of order n + 1, so that -1 is `lgamma` itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, n: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.n = n
        known = {-1: special.gammaln, 0: special.psi, 1: _trigamma}
        return _of_numpy(known.get(n, lambda x: special.polygamma(n, x)))(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return gradient * _Polygamma.apply(x, ctx.n + 1), None


def _trigamma(x: np.ndarray) -> np.ndarray:
    # SciPy's is for positive numbers.
    reflected = (np.pi / np.sin(np.pi * x)) ** 2 - special.polygamma(1, 1 - x)
    return np.where(x < 0, reflected, special.polygamma(1, x))


def _of_numpy(function: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.as_tensor(function(x.detach().double().numpy()), dtype=torch.float64)


def _polygamma(x: Tensor, n: int) -> Tensor:
    result: Tensor = _Polygamma.apply(x, n)
    return result


def _multivariate(x: Tensor, p: int) -> Tensor:
    return sum((_polygamma(x - j / 2, -1) for j in range(p)), start=torch.tensor(p * (p - 1) / 4 * math.log(math.pi)))


def _alignments(log_probs: Tensor, labels: list[int], blank: int) -> Tensor:
    """The loss of one sample: all alignments summed in scaled probabilities, whose logarithms would lose digits."""
    states = [blank, *(state for label in labels for state in (label, blank))]
    emitted = log_probs.exp()[:, states]
    # A label may follow another one without a blank between them.
    skips = [n > 1 and states[n] not in (blank, states[n - 2]) for n in range(len(states))]
    may_skip = torch.tensor(skips, dtype=emitted.dtype)
    before = torch.zeros(len(states), dtype=emitted.dtype)
    before[0] = 1.0
    loss = torch.zeros((), dtype=emitted.dtype)
    for time, now in enumerate(emitted):
        one, two = (torch.cat([torch.zeros(n, dtype=before.dtype), before])[: len(states)] for n in (1, 2))
        reached = before + one + (two * may_skip if time else 0)
        after = reached * now
        scale = after.sum()
        loss = loss - scale.log()
        before = after / scale
    return loss - before[-2:].sum().log()


class _Ctc(torch.autograd.Function):
    """The losses, with the gradient that PyTorch gives: for the logits behind a `log_softmax`."""

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, targets: list[list[int]], lengths: list[int], blank: int) -> Tensor:
        with torch.enable_grad():
            leaf = log_probs.detach().double().requires_grad_()
            samples = [
                _alignments(leaf[:n, i], each, blank) for i, (n, each) in enumerate(zip(lengths, targets, strict=True))
            ]
            losses = torch.stack(samples)
            (visits,) = torch.autograd.grad(losses.sum(), leaf)
        running = torch.arange(len(leaf))[:, None] < torch.tensor(lengths)
        ctx.slopes = torch.where(running[..., None], leaf.detach().exp() + visits, 0)
        return losses.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.slopes * gradient[:, None], None, None, None


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    lengths, counts = (torch.as_tensor(each).reshape(-1).tolist() for each in (input_lengths, target_lengths))
    is_batch = log_probs.dim() == 3
    probs = log_probs if is_batch else log_probs[:, None]
    if targets.dim() == 2:
        labels = [row[:n].tolist() for row, n in zip(targets, counts, strict=True)]
    else:
        labels = [each.tolist() for each in targets[: sum(counts)].split(counts)]
    losses: Tensor = _Ctc.apply(probs, labels, lengths, blank)
    if zero_infinity:
        losses = torch.where(losses.isinf(), 0, losses)
    if reduction == "mean":
        return (losses / torch.tensor(counts).clamp_min(1)).mean()
    return losses.sum() if reduction == "sum" else losses if is_batch else losses[0]


# By the operators' names; called with operands in float64, as the operators are.
EXACT: dict[str, Callable[..., Any]] = {
    "_foreach_lgamma": lambda tensors: [_polygamma(x, -1) for x in tensors],
    "digamma": lambda x: _polygamma(x, 0),
    "lgamma": lambda x: _polygamma(x, -1),
    "mvlgamma": _multivariate,
    "nn.functional.ctc_loss": _ctc_loss,
    "nn.functional.hardsigmoid": lambda x, inplace=False: (x + 3).clamp(0, 6) / 6,
    "polygamma": _polygamma,
    "special.airy_ai": _of_numpy(lambda x: special.airy(x)[0]),
    "special.bessel_j0": _of_numpy(special.j0),
    "special.bessel_j1": _of_numpy(special.j1),
    "special.bessel_y0": _of_numpy(special.y0),
    "special.bessel_y1": _of_numpy(special.y1),
    "special.polygamma": _polygamma,
}
