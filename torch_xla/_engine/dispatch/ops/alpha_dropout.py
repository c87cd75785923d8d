"""Dropout that keeps mean and variance, composed of operations that round alike however the program is cut.

PyTorch composes it as `input * a + b`. XLA:CPU rounds such a product and sum once or twice, by which operations are in
one program and what it knows of the numbers. Here the product before the sum is exact: it is by 0 or 1.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

aten = torch.ops.aten

# SELU tends to the negative of this number. Dropped elements become that, before mean and variance are restored.
_LIMIT = 1.7580993408473766


def _is_usual(input: Tensor, p: float, train: bool, dims: int) -> bool:
    return train and 0 < p < 1 and input.is_floating_point() and input.numel() > 0 and input.dim() >= dims


def _kept_of(input: Tensor, p: float, is_of_features: bool) -> Tensor:
    if not is_of_features:
        return torch.empty_like(input, dtype=torch.bool).bernoulli_(1 - p)
    size = (*input.shape[:2], *(1,) * (input.dim() - 2))
    return torch.empty(size, dtype=torch.bool, device=input.device).bernoulli_(1 - p)


def _moved(kept_elements: Tensor, kept: Tensor, p: float) -> Tensor:
    """Return the result for `kept_elements`, which are 0 where they are not `kept`."""
    offset = torch.where(kept, kept_elements.new_full((), _LIMIT * p), kept_elements.new_full((), _LIMIT * (p - 1)))
    return (kept_elements + offset) * (1 / math.sqrt((_LIMIT * _LIMIT * p + 1) * (1 - p)))


def _kernel(name: str, is_of_features: bool) -> Callable[[Tensor, float, bool], Tensor]:
    """Return the kernel of `aten::<name>`; PyTorch's own composition returns or refuses what draws nothing."""
    composed = getattr(aten, name).default.decompose
    dims = 2 if is_of_features else 0

    def kernel(input: Tensor, p: float, train: bool) -> Tensor:
        if not _is_usual(input, p, train, dims):
            result: Tensor = composed(input, p, train)
            return result
        kept = _kept_of(input, p, is_of_features)
        return _moved(input * kept, kept, p)

    def in_place(input: Tensor, p: float, train: bool) -> Tensor:
        if not _is_usual(input, p, train, dims):
            result: Tensor = composed(input, p, train)
            return result
        kept = _kept_of(input, p, is_of_features)
        input.mul_(kept)
        return input.copy_(_moved(input, kept, p))

    return in_place if name.endswith("_") else kernel


KERNELS: dict[str, Callable[..., Tensor]] = {
    name: _kernel(name, name.startswith("feature"))
    for name in ("alpha_dropout", "alpha_dropout_", "feature_alpha_dropout", "feature_alpha_dropout_")
}


def register_above_autograd() -> torch.library.Library:
    """Let autograd differentiate what they are composed of; the returned library keeps the kernels in force."""
    library = torch.library.Library("aten", "IMPL", "AutogradPrivateUse1")
    for name, kernel in KERNELS.items():
        library.impl(name, kernel, "AutogradPrivateUse1")
    return library
