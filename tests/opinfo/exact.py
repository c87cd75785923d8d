"""The truth of operators of which PyTorch's CPU kernels know seven to ten digits only, in float64 too.

A sixth is a float32 in the gradient of `hardsigmoid`, and the trigamma function, which the second derivatives of
`lgamma` are made of, is known to ten digits. SciPy knows them all, and these can be differentiated as often as asked.
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


# By the operators' names; called with operands in float64, as the operators are.
EXACT: dict[str, Callable[..., Any]] = {
    "_foreach_lgamma": lambda tensors: [_polygamma(x, -1) for x in tensors],
    "digamma": lambda x: _polygamma(x, 0),
    "lgamma": lambda x: _polygamma(x, -1),
    "mvlgamma": _multivariate,
    "nn.functional.hardsigmoid": lambda x, inplace=False: (x + 3).clamp(0, 6) / 6,
    "polygamma": _polygamma,
    "special.airy_ai": _of_numpy(lambda x: special.airy(x)[0]),
    "special.bessel_j0": _of_numpy(special.j0),
    "special.bessel_j1": _of_numpy(special.j1),
    "special.bessel_y0": _of_numpy(special.y0),
    "special.bessel_y1": _of_numpy(special.y1),
    "special.polygamma": _polygamma,
}
