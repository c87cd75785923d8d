"""When two results are the same: form, size, strides and dtype exactly, elements as exactly as their dtype allows."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .truth import FEW, MANY, Truth

# The error of our result may be this many times that of PyTorch's on the CPU, against the float64 truth ...
SLACK = 4.0
# ... plus this many roundings of the element, and this many times the change of the truth when the operands change by a
# rounding, ...
ROUNDINGS = 4.0
# ... plus this many roundings of the largest element, if an element is computed from many: a sum is as exact as its
# terms. The terms of a gradient are at least as large as its start values. All is counted for each element, so that an
# error in one does not excuse errors in others.
FLOOR = 4.0
# The largest start values of gradients; second gradients have twice as many factors.
TERMS = {"gradient": 1.5, "second gradient": 2.25}
# Elements within this number of roundings are the same, without a comparison with the truth.
NEAR = 2.0
# Without a float64 truth.
UNTOLD = 16.0


@dataclass(frozen=True)
class Measure:
    """The measure of a result's error; see `Truth`."""

    value: Callable[[], Tensor | None]
    noise: Callable[[int], Tensor | None]
    spread: Callable[[int], Tensor | None]
    # The size of the terms whose sum an element is, at least; `None` for an element that is no sum.
    terms: float | None

    @classmethod
    def of(cls, truth: Truth, name: str, index: int, is_pointwise: bool) -> "Measure":
        """The measure of one of a call's results, or of a gradient: of those, only results can be pointwise."""
        value, noise, spread = (functools.partial(ask, name, index) for ask in (truth.value, truth.noise, truth.spread))
        return cls(value, noise, spread, TERMS.get(name, None if is_pointwise else 0.0))


class Differs(AssertionError):
    """Two results are not the same; the text says in what."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def strides_that_count(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides, without those of dimensions with one element."""
    if tensor.numel() == 0:
        return ()
    return tuple(stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)


def check_shape(ours: Any, theirs: Any, where: str) -> None:
    """Raises unless our result has the form of theirs: size, dtype, layout, strides, lazy bits."""
    if not isinstance(theirs, Tensor):
        if ours != theirs and not (ours != ours and theirs != theirs):
            if isinstance(theirs, float | complex) and isinstance(ours, float | complex):
                check_values(torch.tensor(ours), torch.tensor(theirs), None, where)
                return
            raise Differs("value", f"{where}: {ours!r}, not {theirs!r}")
        return
    if not isinstance(ours, Tensor):
        raise Differs("form", f"{where}: {type(ours).__name__}, not a tensor")
    if ours.layout is not theirs.layout:
        raise Differs("form", f"{where}: layout {ours.layout}, not {theirs.layout}")
    if ours.shape != theirs.shape:
        raise Differs("form", f"{where}: size {tuple(ours.shape)}, not {tuple(theirs.shape)}")
    if ours.dtype is not theirs.dtype:
        raise Differs("form", f"{where}: {ours.dtype}, not {theirs.dtype}")
    if theirs.layout is torch.strided and strides_that_count(ours) != strides_that_count(theirs):
        raise Differs("strides", f"{where}: strides {ours.stride()}, not {theirs.stride()} of {tuple(ours.shape)}")
    if (ours.is_conj(), ours.is_neg()) != (theirs.is_conj(), theirs.is_neg()):
        raise Differs("form", f"{where}: conjugate or negative bits differ")


def check_values(ours: Tensor, theirs: Tensor, measure: Measure | None, where: str) -> None:
    """Raises unless each element agrees, or ours is about as near to the truth in float64 as theirs.

    An element may be `SLACK` times as far from the truth as PyTorch's, plus `ROUNDINGS` times what a rounding of it,
    and of the operands, comes to, plus `FLOOR` roundings of the largest element unless the operator is pointwise. So
    cancellation is allowed what the operands' own roundings make of it, and no more.
    """
    ours, theirs = (_plain(t) for t in (ours, theirs))
    if ours.numel() == 0:
        return
    if not (theirs.is_floating_point() or theirs.is_complex()):
        if not torch.equal(ours, theirs):
            wrong = (ours != theirs).sum().item()
            raise Differs("value", f"{where}: {wrong} of {ours.numel()} elements differ: {_first(ours, theirs)}")
        return
    same = (ours == theirs) | (ours.isnan() & theirs.isnan()) | _is_within(ours, theirs, NEAR)
    if bool(same.all()):
        return
    exact = measure.value() if measure is not None else None
    if measure is None or exact is None or exact.shape != theirs.shape:
        if not bool((same | _is_within(ours, theirs, UNTOLD)).all()):
            raise Differs("value", f"{where}: {_first(ours, theirs, ~same)}")
        return
    exact = _plain(exact)
    wide = torch.complex128 if exact.is_complex() else torch.float64
    # Where PyTorch's own result is lost, as to an overflow on the way, the truth takes its place.
    theirs = torch.where(torch.isfinite(theirs) | ~torch.isfinite(exact), theirs, exact.to(theirs.dtype))
    same |= (ours == theirs) | ~torch.isfinite(exact) & _is_within(ours, theirs, UNTOLD)
    our_error, their_error = ((t.to(wide) - exact.to(wide)).abs() for t in (ours, theirs))
    if not exact.is_complex():
        same |= _is_at_pole(ours, theirs, exact)
    largest = exact.abs().nan_to_num(0, 0, 0).max().clamp_min(measure.terms or 0.0)
    allowed = SLACK * their_error + ROUNDINGS * _rounding(exact, theirs.dtype)
    if measure.terms is not None:
        allowed += FLOOR * torch.finfo(theirs.dtype).eps * largest
    # Nothing is wider than float64: there the truth is PyTorch's own result, as far off as ours may be.
    doubt = 2.0 if exact.dtype is theirs.dtype else 1.0
    allowed *= doubt
    if bool((same | (our_error <= allowed)).all()):
        return
    # If half of the digits change, PyTorch's result is the only measure.
    most, more = torch.finfo(theirs.dtype).eps ** 0.5 * largest, allowed
    for nudges in (FEW, MANY):
        noise, spread = measure.noise(nudges), measure.spread(nudges)
        if noise is None or spread is None:
            break
        more = allowed + doubt * (SLACK * noise.clamp_max(most) + ROUNDINGS * spread.clamp_max(most))
        if bool((same | (our_error <= more)).all()):
            return
    same |= our_error <= more
    raise Differs("value", f"{where}: {_first(ours, theirs, ~same)}{_by_how_much(same, our_error, more, exact)}")


def _is_at_pole(ours: Tensor, theirs: Tensor, exact: Tensor) -> Tensor:
    """Where ours is infinite, and PyTorch's results are large numbers of that sign that have no digit in common.

    At a pole, a kernel gives what the rounding of its operand makes of it: another number in each dtype.
    """
    size, widest = theirs.double().abs(), exact.abs()
    differ = torch.maximum(size, widest) > torch.minimum(size, widest) / torch.finfo(torch.float32).eps
    large = torch.minimum(size, widest) > 1 / torch.finfo(torch.float32).eps
    return ours.isinf() & differ & large & (ours.sign() == theirs.sign()) & (ours.sign() == exact.sign())


def _rounding(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the size of a rounding of each element. Numbers below every normal number may be flushed to zero."""
    limits = torch.finfo(dtype)
    # The smallest normal number of float16 is in common use, and smaller ones are not flushed.
    smallest = limits.smallest_normal * (limits.eps if dtype is torch.float16 else 1)
    return limits.eps * exact.abs().nan_to_num(0, 0, 0) + smallest


def _is_within(ours: Tensor, theirs: Tensor, roundings: float) -> Tensor:
    return (ours - theirs).abs() <= roundings * torch.finfo(theirs.dtype).eps * theirs.abs()


def _by_how_much(same: Tensor, error: Tensor, allowed: Tensor, exact: Tensor) -> str:
    worst = int(torch.where(same, 0, (error / allowed).nan_to_num(torch.inf)).flatten().argmax())
    return (
        f" ({int((~same).sum())} of {same.numel()} elements; the worst is {error.flatten()[worst]:.3g} from the truth "
        f"{exact.flatten()[worst].item()!r}, {allowed.flatten()[worst]:.3g} is allowed)"
    )


def _plain(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    return tensor.float() if "float8" in str(tensor.dtype) else tensor


def _first(ours: Tensor, theirs: Tensor, differs: Tensor | None = None) -> str:
    if differs is None:
        differs = (ours != theirs) & ~(ours.isnan() & theirs.isnan())
    distance = (ours.to(torch.complex128) - theirs.to(torch.complex128)).abs()
    if not bool(differs.any()):
        return "equal"
    distance = torch.where(differs, torch.where(distance.isnan(), torch.inf, distance), 0.0)
    at = int(distance.flatten().argmax())
    place = [int(i) for i in torch.unravel_index(torch.tensor(at), ours.shape)] if ours.dim() else []
    return f"{ours.flatten()[at].item()!r}, not {theirs.flatten()[at].item()!r} at {place}"


def check_choice(ours: Tensor, theirs: Tensor, picked_from: Tensor, dim: int, where: str) -> bool:
    """Whether both choose the same places along `dim`; raises unless they choose equal elements, none of them twice.

    Which of some equal elements an unstable sort or a selection takes, PyTorch does not say.
    """
    ours, theirs, picked_from = (_plain(t) for t in (ours, theirs, picked_from))
    if torch.equal(ours, theirs):
        return True
    if picked_from.dim() == 0 or bool((ours < 0).any() | (ours >= picked_from.shape[dim]).any()):
        raise Differs("value", f"{where}: {ours.tolist()}, not {theirs.tolist()}")
    if ours.dim() < picked_from.dim():
        ours, theirs = ours.unsqueeze(dim), theirs.unsqueeze(dim)
    mine, yours = (picked_from.gather(dim, index) for index in (ours, theirs))
    check_values(mine, yours, None, f"{where}: elements chosen")
    if bool((ours.sort(dim).values.diff(dim=dim) == 0).any()):
        raise Differs("value", f"{where}: the same place is chosen twice")
    return False


def leaves(result: Any) -> Sequence[Any]:
    """The results of a call, flat."""
    return torch.utils._pytree.tree_leaves(result)
