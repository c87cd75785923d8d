"""Refuse invalid values at the call where the host knows them.

The host knows Python numbers, and the elements of small tensors that came from the host. The checks here are cheap and
may report too much: a call on the CPU then decides, and raises the error. `device_values` checks computed values.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...compat.names.torch import pytree
from ...tensor.host_known_values import Asked, known_numbers
from ...tensor.storage import shows_all, value_of
from ..op_schema import Operator, operator_of
from ..recording_kernel import recorder, recorder_of_two
from . import cpu_errors
from .memory_overruns import refuse_falling_offsets
from .scalar_ranges import check, holds_number, limits_of

MEAN = 1


def beyond(tensor: object, least: float, most: float) -> bool:
    """Return whether a number that the host knows is not between two others. NaN is between none."""
    known = known_numbers(tensor, Asked.EACH)
    return known is not None and known.size > 0 and not (least <= known.min() and known.max() <= most)


def _shown(tensor: Tensor) -> np.ndarray | None:
    """Return the numbers of a tensor itself, not of the memory that it shows a part of."""
    known = known_numbers(tensor)
    return known if known is not None and shows_all(tensor, value_of(tensor).spec) else None


def _no_probability(tensor: object) -> bool:
    return beyond(tensor, 0, 1)


def _no_probabilities(self: Tensor, target: Tensor, *_: object) -> bool:
    return beyond(self, 0, 1) or beyond(target, 0, 1)


def _no_class(
    self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN, ignore_index: int = -100
) -> bool:
    known = known_numbers(target, Asked.EACH)
    if known is None or not self.dim():
        return False
    classes = self.shape[0 if self.dim() == 1 else 1]
    return bool((((known < 0) | (known >= classes)) & (known != ignore_index)).any())


def _divides_by_zero(self: object, other: object, *, rounding_mode: str | None = "floor") -> bool:
    if rounding_mode is None or _is_fractional(other) or _is_fractional(self):
        return False
    # The divisor has the common dtype: 256 is 0 beside bytes.
    values = 1 << 8 * torch.result_type(self, other).itemsize  # type: ignore[call-overload]
    if not isinstance(other, Tensor):
        return not int(other) % values  # type: ignore[call-overload]
    if other.device.type == "cpu":
        return not other.dim() and not int(other.item()) % values
    known = known_numbers(other, Asked.EACH)
    return known is not None and not (known.all() if other.dim() else int(known.item()) % values)


def _is_fractional(operand: object) -> bool:
    if isinstance(operand, Tensor):
        return operand.dtype.is_floating_point or operand.dtype.is_complex
    return isinstance(operand, (float, complex))


def _is_power_of_bytes(self: object, exponent: object) -> bool:
    """Return whether it is a power of 8-bit floats: the CPU takes the number 1, or 0 as an exponent, and no other."""
    base = self if isinstance(self, Tensor) else exponent
    return isinstance(base, Tensor) and base.dtype.is_floating_point and base.dtype.itemsize == 1


def _no_bags(weight: Tensor, indices: Tensor, offsets: Tensor, *_: object) -> bool:
    if indices.dim() not in (1, 2) or offsets.dim() != 1 or weight.dim() != 2:
        return True
    if beyond(indices, 0, weight.shape[0] - 1):
        return True
    known = _shown(offsets)
    if known is None or not known.size:
        return False
    if known[0] == 0 and known[-1] <= indices.numel():  # the CPU looks at these two alone
        refuse_falling_offsets(known.tolist())
        return False
    return True


def _finds_no_range(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> bool:
    known = known_numbers(self)
    return known is not None and min == max and not np.isfinite(known).all()


def _unpools_outside(self: Tensor, indices: Tensor, output_size: Sequence[int], *_: object) -> bool:
    return beyond(indices, 0, int(np.prod(output_size)) - 1)


def _has_no_order(sequence: Tensor, values: object, *, sorter: Tensor | None = None, **_: object) -> bool:
    return sorter is not None and bool(sequence.dim()) and beyond(sorter, 0, sequence.shape[-1] - 1)


def _leaves_elements(
    data: Tensor, reduce: str, *, lengths: Tensor | None = None, axis: int = 0, unsafe: bool = False, **_: object
) -> bool:
    known = _shown(lengths) if lengths is not None and not unsafe else None
    if known is None or not known.ndim or data.dim() < known.ndim:
        return False
    return bool((known < 0).any() or (known.sum(-1) != data.shape[known.ndim - 1]).any())


def _fills_beyond(self: Tensor, mask: Tensor, value: object) -> bool:
    return not holds_number(self.dtype, value)


def _leaves_gradients(grad_output: Tensor, mask: Tensor, sizes: Sequence[int]) -> bool:
    known = _shown(mask) if mask.shape == grad_output.shape else None
    return known is not None and int(known.sum()) > int(np.prod(sizes))


# By operator, whether a call has values that there cannot be.
IS_BAD: dict[str, Callable[..., bool]] = {
    "_embedding_bag": _no_bags,
    "_embedding_bag_forward_only": _no_bags,
    "bernoulli": lambda self: _no_probability(self),
    "bernoulli.Tensor": lambda self, p: _no_probability(p),
    "bernoulli_.Tensor": lambda self, p: _no_probability(p),
    "binary_cross_entropy": _no_probabilities,
    "div.Scalar_mode": _divides_by_zero,
    "div.Tensor_mode": _divides_by_zero,
    "div_.Scalar_mode": _divides_by_zero,
    "div_.Tensor_mode": _divides_by_zero,
    "embedding_renorm_": lambda self, indices, *_: bool(self.dim()) and beyond(indices, 0, self.shape[0] - 1),
    "floor_divide": _divides_by_zero,
    "floor_divide.Scalar": _divides_by_zero,
    "floor_divide_.Scalar": _divides_by_zero,
    "floor_divide_.Tensor": _divides_by_zero,
    "fmod.Scalar": _divides_by_zero,
    "fmod.Tensor": _divides_by_zero,
    "fmod_.Scalar": _divides_by_zero,
    "fmod_.Tensor": _divides_by_zero,
    "histc": _finds_no_range,
    "lu_unpack": lambda LU, pivots, *_, **__: LU.dim() > 1 and beyond(pivots, 1, LU.shape[-2]),
    "masked_fill.Tensor": _fills_beyond,
    "masked_fill_.Tensor": _fills_beyond,
    "masked_scatter_backward": _leaves_gradients,
    "max_unpool2d": _unpools_outside,
    "max_unpool3d": _unpools_outside,
    "multi_margin_loss": lambda self, target, *_: bool(self.dim()) and beyond(target, 0, self.shape[-1] - 1),
    "multilabel_margin_loss_forward": (
        lambda self, target, *_: bool(self.dim()) and beyond(target, -1, self.shape[-1] - 1)
    ),
    "nll_loss2d_forward": _no_class,
    "nll_loss_forward": _no_class,
    "normal.Tensor_Tensor": lambda mean, std: beyond(std, 0, np.inf),
    "normal.float_Tensor": lambda mean, std: beyond(std, 0, np.inf),
    "pow.Scalar": _is_power_of_bytes,
    "pow.Tensor_Scalar": _is_power_of_bytes,
    "pow_.Scalar": _is_power_of_bytes,
    "poisson": lambda self: beyond(self, 0, np.inf),
    "remainder.Scalar": _divides_by_zero,
    "remainder.Scalar_Tensor": _divides_by_zero,
    "remainder.Tensor": _divides_by_zero,
    "remainder_.Scalar": _divides_by_zero,
    "remainder_.Tensor": _divides_by_zero,
    "searchsorted.Scalar": _has_no_order,
    "searchsorted.Tensor": _has_no_order,
    "segment_reduce": _leaves_elements,
    "smooth_l1_loss": lambda self, target, reduction=MEAN, beta=1.0: beta < 0,
}

_OF_TWO = frozenset(("floor_divide", "fmod.Tensor", "remainder.Tensor"))


def refusing(name: str) -> Callable[..., object]:
    """Return the kernel of `aten::<name>`, which refuses known values that the CPU refuses."""
    qualified, is_bad = f"aten::{name}", IS_BAD[name]
    record = recorder_of_two(qualified) if name in _OF_TWO else recorder(qualified)

    def kernel(*args: object, generator: torch.Generator | None = None, **kwargs: object) -> Any:
        given = args[:-1] if args and args[-1].__class__ is torch.Generator else args
        if is_bad(*given, **kwargs):
            cpu_errors.refuse_if_the_cpu_does(operator_of(qualified), given, kwargs)
        if generator is not None:
            kwargs["generator"] = generator
        return record(*args, **kwargs)

    return kernel


# Draws that look at their numbers, as functional forms have them.
_DRAWS = frozenset(
    f"aten::{name}"
    for name in ("bernoulli.p", "cauchy", "exponential", "geometric", "log_normal", "normal_functional", "random",
                 "random.from", "random.to", "uniform")
)  # fmt: skip


def refuse_numbers(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], results: object) -> None:
    """Raise the CPU's error for the numbers of a call in a graph, whose tensors, on the host, have unknown elements."""
    unknown_args, unknown_kwargs = pytree.tree_map_only(Tensor, lambda each: each.to("meta"), (args, kwargs))
    is_bad = IS_BAD.get(operator.name.removeprefix("aten::"))
    if is_bad is not None and is_bad(*unknown_args, **unknown_kwargs):
        cpu_errors.refuse_if_the_cpu_does(operator, args, kwargs)
    if operator.name in _DRAWS:
        refusal = cpu_errors.refusal_of_the_cpu(operator, args, kwargs, small=True)
        if refusal is not None:
            raise refusal
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs, results)) if isinstance(leaf, Tensor)]
    limits = limits_of(operator, args, kwargs, [tensor.dtype for tensor in tensors])
    if limits is not None:
        check(limits, operator, args, kwargs)


def _filling(name: str) -> Callable[..., object]:
    """Return a kernel that reads a complex number for real elements: the CPU takes it if its imaginary part is 0."""
    fill = refusing(name)

    def kernel(self: Tensor, mask: Tensor, value: Tensor) -> object:
        return fill(self, mask, value.cpu() if value.is_complex() and not self.is_complex() else value)

    return kernel


KERNELS: dict[str, Callable[..., object]] = {
    **{name: refusing(name) for name in IS_BAD},
    **{name: _filling(name) for name in ("masked_fill.Tensor", "masked_fill_.Tensor")},
}
