"""A guard on the hooks of autograd nodes that the backward pass of a replay would run."""

from collections.abc import Sequence

import torch

from ...compat.patches.autograd_observers import hooks_of_leaf, hooks_of_nodes


class NodeHooks:
    """The hooks of the nodes that existed before the call: those that accumulate the gradients of leaves.

    Reading hooks takes long, so they are read where some hook was registered since, or where there are some.
    """

    def __init__(self, leaves: Sequence[torch.Tensor], seen: Sequence[torch.Tensor]) -> None:
        """Guard the hooks of `leaves`. Other tensors that are `seen` may belong to a graph, whose nodes are unknown."""
        self._leaves = leaves
        known = set(map(id, leaves))
        self._sees_graphs = any(tensor.requires_grad and id(tensor) not in known for tensor in seen)
        self._last = hooks_of_nodes()
        self._hooks = self._now()
        self._has_some = any(any(hooks) for hooks in self._hooks)
        self.count = -1 if self._has_some else self._last  # as long as this many were registered, none is there

    def unchanged(self) -> bool:
        """Return whether a backward pass would run the same hooks."""
        count = hooks_of_nodes()
        if (count != self._last and self._sees_graphs) or self._now() != self._hooks:
            return False
        self._last = count
        if not self._has_some:
            self.count = count
        return True

    def _now(self) -> list[list[dict[int, object]]]:
        return list(map(hooks_of_leaf, self._leaves))
