"""When two results are the same: form, size, strides and dtype exactly, elements as far as their dtype tells."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# How much farther from the float64 truth than PyTorch's own result on the CPU ours may lie.
SLACK = 4.0

# Relative and absolute: what a chain of a few operations loses.
TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-7, 1e-7),
    torch.complex128: (1e-7, 1e-7),
    torch.float32: (1e-4, 1e-5),
    torch.complex64: (1e-4, 1e-5),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (1.6e-2, 1.6e-2),
}


class Differs(AssertionError):
    """Two results are not the same; the text says in what."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def strides_that_count(tensor: Tensor) -> tuple[int, ...]:
    """The strides, without those of dimensions in which nobody steps."""
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


def check_values(ours: Tensor, theirs: Tensor, truth: Callable[[], Tensor | None] | None, where: str) -> None:
    """Raises unless the elements agree, or ours are about as near to the truth in float64 as theirs."""
    ours, theirs = (_plain(t) for t in (ours, theirs))
    if ours.numel() == 0:
        return
    if not (theirs.is_floating_point() or theirs.is_complex()):
        if not torch.equal(ours, theirs):
            wrong = (ours != theirs).sum().item()
            raise Differs("value", f"{where}: {wrong} of {ours.numel()} elements differ: {_first(ours, theirs)}")
        return
    rtol, atol = TOLERANCES.get(theirs.dtype, (0.0, 0.0))
    if torch.allclose(ours, theirs, rtol=rtol, atol=atol, equal_nan=True):
        return
    exact = truth() if truth is not None else None
    if exact is not None and exact.shape == theirs.shape:
        exact = _plain(exact)
        # Where PyTorch's own result is lost, as to an overflow on the way, the truth takes its place.
        theirs = torch.where(theirs.isnan() & ~exact.isnan(), exact.to(theirs.dtype), theirs)
        if torch.allclose(ours, theirs, rtol=rtol, atol=atol, equal_nan=True) or _as_near(ours, theirs, exact):
            return
    raise Differs("value", f"{where}: {_first(ours, theirs)}")


def _as_near(ours: Tensor, theirs: Tensor, truth: Tensor) -> bool:
    wide = torch.complex128 if truth.is_complex() else torch.float64
    our_error, their_error = ((t.to(wide) - truth.to(wide)).abs() for t in (ours, theirs))
    scale = torch.finfo(theirs.dtype).eps * truth.abs().nan_to_num(0, 0, 0).max().clamp_min(1)
    allowed = SLACK * torch.maximum(their_error, scale)
    settled = torch.isfinite(our_error) | torch.isfinite(their_error)
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    if bool((same | (settled & (our_error <= allowed))).all()):
        return True
    # Where terms cancel, PyTorch's errors are large in most elements and by luck none in a few: what counts then is
    # that no element of ours is so much worse, relative to its size, than its worst one.
    ours_at_worst, theirs_at_worst = (
        (e / (truth.abs() + scale)).masked_fill(same, 0).max() for e in (our_error, their_error)
    )
    return bool((same | settled).all()) and bool(ours_at_worst <= SLACK * theirs_at_worst)


def _plain(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    return tensor.float() if "float8" in str(tensor.dtype) else tensor


def _first(ours: Tensor, theirs: Tensor) -> str:
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
