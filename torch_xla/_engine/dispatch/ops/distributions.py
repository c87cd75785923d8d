"""Operators that draw random numbers, and their errors for invalid distribution parameters.

Such a parameter is a number, and numbers are no part of a plan: they are looked at in every call. So are weights that
came from the host as they are.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...compat.names import torch as private
from ...tensor.host_known_values import known_numbers
from ...tensor.storage import shows_all, value_of
from ..checks import cpu_errors
from ..op_schema import operator_of
from ..recording_kernel import recorder


def _integers_exist(self: Tensor, start: int, stop: int | None) -> bool:
    if self.dtype.is_complex:
        return False
    limits = torch.finfo(self.dtype) if self.dtype.is_floating_point else None
    if limits is None and self.dtype is not torch.bool:
        limits = torch.iinfo(self.dtype)  # type: ignore[assignment]
    elif limits is not None and self.dtype.itemsize > 1:
        every = 2 / limits.eps  # up to here a float of this dtype is each whole number
        if not (-every <= start <= every and (stop is None or stop - 1 <= every)):
            with private.without_modes():
                torch.empty(0, dtype=self.dtype).random_(start, stop)  # warns or refuses in the words of the CPU
    least, most = (limits.min, limits.max) if limits is not None else (0, 1)
    return least <= start and (stop is None or (start < stop and stop - 1 <= most))


def _interval_exists(self: Tensor, start: float = 0.0, stop: float = 1.0) -> bool:
    dtype = self.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        return False
    most = torch.finfo(dtype).max
    return -most <= start <= stop <= most and stop - start <= most


def _bounds(self: Tensor, start: float = 0.0, stop: float = 1.0) -> tuple[float, float]:
    return start, stop


def _weights_exist(self: Tensor, num_samples: int, replacement: bool = False) -> bool:
    known: np.ndarray | None = None
    if self.device.type == "xla" and self.dtype.is_floating_point and shows_all(self, value_of(self).spec):
        known = known_numbers(self)
    if known is None:
        return True  # the device alone knows: it is not waited for
    return bool(((known >= 0) & (known < np.inf)).all()) and bool((known.reshape(self.shape).sum(-1) > 0).all())


# Whether there is such a distribution. Written so that NaN is none; the CPU has the last word on what is not.
EXISTS: dict[str, Callable[..., bool]] = {
    "bernoulli.p": lambda self, p: 0 <= p <= 1,
    "bernoulli_.float": lambda self, p=0.5: 0 <= p <= 1,
    "cauchy": lambda self, median=0.0, sigma=1.0: sigma > 0,
    "cauchy_": lambda self, median=0.0, sigma=1.0: sigma > 0,
    "exponential": lambda self, lambd=1.0: lambd > 0,
    "exponential_": lambda self, lambd=1.0: lambd > 0,
    "geometric": lambda self, p: 0 < p < 1,
    "geometric_": lambda self, p: 0 < p < 1,
    "log_normal": lambda self, mean=1.0, std=2.0: std > 0,
    "log_normal_": lambda self, mean=1.0, std=2.0: std > 0,
    "multinomial": _weights_exist,
    "native_dropout": lambda input, p, train=None: 0 <= p <= 1,
    "normal.Tensor_float": lambda mean, std=1.0: std >= 0,
    "normal.float_float": lambda mean, std, size: std >= 0,
    "normal_": lambda self, mean=0.0, std=1.0: std >= 0,
    "normal_functional": lambda self, mean=0.0, std=1.0: std >= 0,
    "random_.from": _integers_exist,
    "random_.to": lambda self, to: _integers_exist(self, 0, to),
    "uniform_": _interval_exists,
}


def checked(name: str) -> Callable[..., object]:
    """Return the kernel of `aten::<name>`, which refuses parameters that the CPU refuses."""
    record, exists = recorder(f"aten::{name}"), EXISTS[name]

    def kernel(*args: Any, **kwargs: object) -> object:
        given = args[:-1] if args and args[-1].__class__ is torch.Generator else args
        if not exists(*given):
            refusal = cpu_errors.refusal_of_the_cpu(operator_of(f"aten::{name}"), args, kwargs)
            if refusal is not None:
                # Floats that the CPU has no kernel for are drawn here, within bounds that they have.
                if (
                    name != "uniform_"
                    or not cpu_errors.is_of_a_missing_kernel(refusal)
                    or not args[0].is_floating_point()
                ):
                    raise refusal
                raise RuntimeError(f"uniform_(): no interval of {args[0].dtype} has the bounds {_bounds(*given)}")
        return record(*args, **kwargs)

    return kernel


KERNELS: dict[str, Callable[..., object]] = {name: checked(name) for name in EXISTS}


def _numbers_of(first: Tensor, *others: object) -> Tensor:
    shapes = [each.shape for each in (first, *others) if isinstance(each, Tensor)]
    return first.new_empty(torch.broadcast_shapes(*shapes))


def describe_draws() -> torch.library.Library:
    """Describe to PyTorch the draws that it has no Meta kernel for; the returned library keeps the kernels in force.

    While PyTorch traces a program, it runs an operator that it cannot describe. A draw that ran would take the
    generator's numbers, so the first call of a compiled function would have others than later ones.
    """
    library = torch.library.Library("aten", "IMPL", "Meta")
    for name in ("binomial", "_sample_dirichlet"):
        if not private.has_kernel(f"aten::{name}", "Meta"):
            library.impl(name, _numbers_of, "Meta")
    return library
