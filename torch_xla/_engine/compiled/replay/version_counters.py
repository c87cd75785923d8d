"""Advance version counters as the function would, so that autograd notices writes to saved tensors."""

from collections import Counter
from collections.abc import Iterator

import torch

from ...compat.names import torch as private
from ...compat.names.torch import version_of
from .call_record import Facts, VersionChange


class VersionChanges:
    """The increments of the version counters of the tensors that a call writes."""

    def __init__(self, facts: Facts) -> None:
        self._alone: list[torch.Tensor] = []
        self._arguments: list[int] = []
        self._leaves: list[torch.Tensor] = []  # whose gradients
        self._together: list[tuple[VersionChange, torch.Tensor | None]] = []  # one may count for the other
        memory = Counter(id(step.tensor.untyped_storage()) for step in facts.written)
        for step in facts.written:
            if step.leaf >= 0:
                self._leaves += [facts.leaves[step.leaf]] * step.count
            elif memory[id(step.tensor.untyped_storage())] > 1:
                kept = step.tensor if step.argument < 0 else None
                self._together.append((VersionChange(torch.empty(0), step.argument, count=step.count), kept))
            elif step.argument >= 0:
                self._arguments += [step.argument] * step.count
            else:
                self._alone += [step.tensor] * step.count

    def of(self, arguments: list[torch.Tensor]) -> tuple[list[torch.Tensor], Iterator[None]]:
        """Return the tensors whose versions a call steps, one entry per step, and an iterator that steps the others."""
        stepped = [*self._alone, *[arguments[index] for index in self._arguments]]
        stepped += [leaf.grad for leaf in self._leaves if leaf.grad is not None]
        return stepped, map(self._count_together, (arguments,)) if self._together else iter(())

    def _count_together(self, arguments: list[torch.Tensor]) -> None:
        tensors = [arguments[step.argument] if kept is None else kept for step, kept in self._together]
        wanted = [version_of(tensor) + step.count for tensor, (step, _) in zip(tensors, self._together, strict=True)]
        for tensor, version in zip(tensors, wanted, strict=True):
            if version_of(tensor) < version:
                private.increment_version([tensor] * (version - version_of(tensor)))
