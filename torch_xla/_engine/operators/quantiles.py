"""`quantile` and `nanquantile`, which PyTorch composes: the fractions in a tensor are looked at, as on the CPU.

PyTorch reads them on the CPU alone. Those that the host knows are refused at once; others where values are checked.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..dispatch import refusals, value_checks
from ..dispatch.forms import operator_of
from ..private import torch as private
from .known_values import beyond

_NAMES = ("quantile", "nanquantile", "quantile.out", "nanquantile.out")


def _looking_at(name: str) -> Callable[..., Tensor]:
    packet, _, overload = name.partition(".")
    composed = getattr(getattr(torch.ops.aten, packet), overload or "default")
    looked_at = getattr(torch.ops.aten, packet).default

    def kernel(self: Tensor, q: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not private.calls_are_watched():
            if beyond(q, 0, 1):
                refusals.refuse_if_the_cpu_does(operator_of(f"aten::{name}"), (self, q, *args), kwargs)
            elif value_checks.are_on() and q.device.type == "xla":
                value_checks.look_at(looked_at, self, q)
        result: Tensor = composed.decompose(self, q, *args, **kwargs)
        return result

    return kernel


def register_quantiles() -> torch.library.Library:
    """Looks at the fractions before PyTorch composes the operators.

    Above autograd alone: with a kernel below it, graphs of `torch.compile` would not be composed of operators.
    """
    library = torch.library.Library("aten", "IMPL", "AutogradPrivateUse1")
    for name in _NAMES:
        library.impl(name, _looking_at(name), "AutogradPrivateUse1")
    return library
