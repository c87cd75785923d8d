"""Copies of a call's device tensors for a kernel that runs elsewhere, which share memory where the tensors do.

A kernel that writes to one operand reads this in another that shows the same memory, and it may return a view.
"""

from collections.abc import Callable, Iterable

import torch

from ..compat.names.torch import address_of, version_of
from ..tensor.storage import value_of, wrap


class Copies:
    """The copies that `fetch` makes of device tensors, and what a kernel did to them.

    One tensor alone is fetched without the rest of its storage. The `whole` storage is fetched on demand, for results
    that are views, and once for several tensors.
    """

    def __init__(
        self,
        fetch: Callable[[torch.Tensor], torch.Tensor],
        tensors: Iterable[torch.Tensor],
        declared: Iterable[torch.Tensor],
        whole: bool = False,
    ) -> None:
        self._declared = {id(tensor) for tensor in declared}
        self._of: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by the `id` of a tensor: it, and its copy
        by_storage: dict[int, list[torch.Tensor]] = {}
        for tensor in {id(tensor): tensor for tensor in tensors}.values():
            by_storage.setdefault(address_of(tensor.untyped_storage()), []).append(tensor)
        for sharing in by_storage.values():
            alone = len(sharing) == 1 and not whole
            made = fetch(sharing[0] if alone else wrap(value_of(sharing[0])))
            # Memory that NumPy or JAX made cannot be resized, and operators resize what they write to.
            if any(id(tensor) in self._declared for tensor in sharing) and not made.untyped_storage().resizable():
                made = made.clone()
            for tensor in sharing:
                self._of[id(tensor)] = tensor, made if alone else _showing(made, tensor, int(tensor.storage_offset()))
        self._versions = {key: _version(copy) for key, (_, copy) in self._of.items()}
        self._kept: dict[int, torch.Tensor] = {}

    def keep(self) -> None:
        """Keep the contents of operands not declared as written: a kernel may write there without PyTorch's knowing."""
        self._kept = {key: copy.clone() for key, (_, copy) in self._of.items() if key not in self._declared}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the copy of one of the tensors."""
        return self._of[id(tensor)][1]

    def written_undeclared(self) -> list[torch.Tensor]:
        """Return the tensors whose copies were written to though the operator does not declare it."""
        return [
            tensor
            for key, (tensor, copy) in self._of.items()
            if key not in self._declared
            and (_version(copy) != self._versions[key] or (key in self._kept and not _same_bits(copy, self._kept[key])))
        ]

    def original(self, result: torch.Tensor) -> torch.Tensor | None:
        """Return the device tensor whose copy a result is, or the view of one that the result is of its copy."""
        for tensor, copy in self._of.values():
            if result is copy:
                return tensor
        place = address_of(result.untyped_storage())
        for tensor, copy in self._of.values():
            if place == address_of(copy.untyped_storage()) and result.numel() and _are_laid_out_alike(tensor, copy):
                offset = int(result.storage_offset() - copy.storage_offset() + tensor.storage_offset())
                return _showing(tensor, result, offset)
        return None


def _showing(memory: torch.Tensor, like: torch.Tensor, offset: int) -> torch.Tensor:
    """Return a tensor that shows the storage of `memory` from an offset on as `like` shows its own."""
    shown = torch.empty(0, dtype=like.dtype, device=memory.device)
    shown.set_(memory.untyped_storage(), offset, like.shape, like.stride())  # type: ignore[call-overload]
    if like.is_complex() and like.is_conj():
        shown = torch._conj(shown)
    return torch._neg_view(shown) if like.is_neg() else shown


def _are_laid_out_alike(tensor: torch.Tensor, copy: torch.Tensor) -> bool:
    return (tensor.stride(), tensor.is_conj(), tensor.is_neg()) == (copy.stride(), copy.is_conj(), copy.is_neg())


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else version_of(tensor)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    pairs = [each.detach().resolve_conj().resolve_neg().contiguous().reshape(-1) for each in (one, other)]
    return torch.equal(*(each.view(torch.uint8) for each in pairs))
