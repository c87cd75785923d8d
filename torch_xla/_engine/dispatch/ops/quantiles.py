"""`quantile` and `nanquantile`: check the fractions in a tensor, as on the CPU.

PyTorch reads them on the CPU alone. Those that the host knows are refused at once; others where values are checked.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ...compat.names import torch as private
from ..checks import cpu_errors, device_values
from ..checks.host_values import beyond
from ..op_schema import operator_of

_NAMES = ("quantile", "nanquantile", "quantile.out", "nanquantile.out")


def _looking_at(name: str) -> Callable[..., Tensor]:
    packet, _, overload = name.partition(".")
    composed = getattr(getattr(torch.ops.aten, packet), overload or "default")
    looked_at = getattr(torch.ops.aten, packet).default

    def kernel(self: Tensor, q: Tensor, *args: object, **kwargs: object) -> Tensor:
        if not private.calls_are_watched():
            if beyond(q, 0, 1):
                cpu_errors.refuse_if_the_cpu_does(operator_of(f"aten::{name}"), (self, q, *args), kwargs)
            elif device_values.are_on() and q.device.type == "xla":
                device_values.look_at(looked_at, self, q)
        result: Tensor = composed.decompose(self, q, *args, **kwargs)
        return result

    return kernel


def register_quantiles() -> torch.library.Library:
    """Check the fractions before PyTorch decomposes the operators.

    Above autograd alone: with a kernel below it, graphs of `torch.compile` would not be composed of operators.
    """
    library = torch.library.Library("aten", "IMPL", "AutogradPrivateUse1")
    for name in _NAMES:
        library.impl(name, _looking_at(name), "AutogradPrivateUse1")
    return library
