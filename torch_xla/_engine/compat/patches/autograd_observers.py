"""Observe reads of tensor attributes and registrations of autograd hooks, for registered listeners.

Version counter, base and address differ between tensors that are equal in everything that guards compare. So while
there are listeners, the class of tensors reports reads of these attributes. Autograd nodes do not list their hooks, but
all registrations go through one Python function, which is given the hooks that the node already has.
"""

import sys
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

import torch

from ...atomic import lock
from .. import patch_list

Listener = Callable[[str, FrameType], None]

_listeners: list[Listener] = []
_lock = lock()


def listen(listener: Listener) -> None:
    """Call `listener(name, frame)` whenever Python code reads `_version`, `_base` or `_cdata` of a tensor."""
    with _lock:
        if not _listeners:
            for patch in patch_list.observed_attributes.values():
                patch.wrap(_observed)
        _listeners.append(listener)


def unlisten(listener: Listener) -> None:
    """Remove a listener that `listen` registered."""
    with _lock:
        _listeners[:] = [each for each in _listeners if each != listener]
        if not _listeners:
            for patch in patch_list.observed_attributes.values():
                if patch.in_force:
                    patch.take_back()


def _observed(descriptor: Any) -> property:
    name = descriptor.__name__

    def read(tensor: torch.Tensor) -> object:
        for listener in tuple(_listeners):
            listener(name, sys._getframe(1))
        return descriptor.__get__(tensor)

    return property(read)


# How many hooks of nodes were registered in this process; not those with which a trace notes where gradients come from.
_hooks = SimpleNamespace(count=0)
_OF_TRACES = "torch._functorch._aot_autograd."


class _Hooks(Exception):
    """Carries the hooks of a node out of a registration that is given up."""


def _raise_hooks(*_: object) -> None:
    """Stand for a hook in a registration that only reads the present hooks."""


def _counted(original: Any) -> object:
    def register_hook(backward_hooks: Any, hook: Any) -> object:
        if hook is _raise_hooks:
            raise _Hooks(backward_hooks)
        _hooks.count += not str(getattr(hook, "__module__", "")).startswith(_OF_TRACES)
        return original(backward_hooks, hook)

    return staticmethod(register_hook)


patch_list.hooks_of_nodes.wrap(_counted)


def hooks_of_nodes() -> int:
    """Return how many hooks were registered on autograd nodes so far: each may act at every backward pass."""
    return int(_hooks.count)


def hooks_of_leaf(leaf: torch.Tensor) -> list[dict[int, object]]:
    """Return the hooks before and behind the node that accumulates a leaf's gradient, by the keys of their handles."""
    node = torch.autograd.graph.get_gradient_edge(leaf).node
    return [_registered(register) for register in (node.register_prehook, node.register_hook)]


def _registered(register: Callable[[Any], object]) -> dict[int, object]:
    try:
        register(_raise_hooks)
    except _Hooks as found:
        return dict(found.args[0] or {})
    raise AssertionError("a registration did not go through the function that is observed")
