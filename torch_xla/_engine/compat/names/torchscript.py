"""Every private name of TorchScript that the engine borrows, to see what a script holds."""

from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from .torch import pytree

# The C++ object behind a script module.
object_of: Callable[[object], object] = attrgetter("_c")

_ObjectOfModule: Any = torch._C.ScriptModule
_type_of: Callable[[Any], Any] = torch._C.ConcreteModuleType.from_jit_type


def modules_of(top: Any) -> Iterator[Any]:
    """Yield the C++ object of a script module, and those of all modules in it."""
    yield top
    for _, child in torch._C.ModuleDict(top).items():
        yield from modules_of(child)


def _is_object(value: object) -> bool:
    """Return whether this is an object of a scripted class."""
    return torch.jit._state._get_script_class(type(value)) is not None


def slots_of(holder: object) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of one script module or object, by name."""
    if not isinstance(holder, _ObjectOfModule):
        yield from vars(holder).items()
        return
    for name in _type_of(holder._type()).get_attributes():
        try:
            yield name, holder.getattr(name)
        except RuntimeError:
            pass  # its class is unknown to Python: it was loaded from a file to the CPU and stays there


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yield the tensors in an attribute: it may be a structure, or an object that holds some."""
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf
        elif _is_object(leaf):
            for _, inner in slots_of(leaf):
                yield from tensors_in(inner)


def replace(holder: object, change: Callable[[Tensor], Tensor]) -> None:
    """Replace tensors anywhere in the attributes of a script module or object."""
    put = holder.setattr if isinstance(holder, _ObjectOfModule) else partial(setattr, holder)
    for name, value in list(slots_of(holder)):
        if next(tensors_in(value), None) is not None:
            put(name, pytree.tree_map(lambda leaf: _changed(leaf, change), value))


def _changed(leaf: object, change: Callable[[Tensor], Tensor]) -> object:
    if isinstance(leaf, Tensor):
        return change(leaf)
    if _is_object(leaf):
        replace(leaf, change)
    return leaf


def _graphs_of(script: object) -> Iterator[Any]:
    """Yield the graphs of a script module's methods and hooks and of those in it, or that of a function."""
    functions: list[Any]
    if isinstance(script, torch.jit.ScriptFunction):
        functions = [script]
    else:
        functions = [
            function
            for each in modules_of(script)
            for function in (
                *map(each._get_method, each._method_names()),
                *each._get_forward_hooks(),
                *each._get_forward_pre_hooks(),
            )
        ]
    for function in functions:
        graph = function.graph
        yield graph
        if graph.findAllNodes("prim::CallFunction"):  # which shows the function by its name alone
            yield function.inlined_graph


def constants_of(script: object) -> Iterator[tuple[Any, Tensor]]:
    """Yield the tensors that are constants of a script, and the node of each."""
    for graph in _graphs_of(script):
        for node in graph.findAllNodes("prim::Constant"):
            kind = node.kindOf("value") if node.hasAttribute("value") else None
            if kind in ("t", "ts", "ival"):
                for tensor in tensors_in(getattr(node, kind)("value")):
                    yield node, tensor


def replace_constants(script: object, change: Callable[[Tensor], Tensor]) -> None:
    """Replace tensor constants of a script that has not been called yet."""
    for node, tensor in list(constants_of(script)):
        if node.kindOf("value") == "t":
            node.t_("value", change(tensor))
