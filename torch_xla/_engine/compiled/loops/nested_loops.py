"""Loops inside a trace: trace the inner body by itself, and make the loop one operator of the outer trace."""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode

from ...atomic import lock
from ...compat.names import torch_dynamo as private
from ...compat.names.torch import HigherOrderOperator, pytree
from ...compat.names.torch import is_traced as is_traced
from ...lowering.control_flow.loops import graph_scan, graph_while
from ..dynamo.backend import compile_whole
from . import lstsq
from .device_indices import Selections, form_of

# How PyTorch's operators that take functions are called inside of a body. Filled by the modules that trace them.
lifted: dict[Hashable, Callable[[object, Callable[..., object], Sequence[object]], object]] = {}


class _Here(threading.local):
    def __init__(self) -> None:
        self.depth = 0
        self.substitutions: list[Substitution] = []


_here = _Here()


class _Transforms:
    """Has the transforms of `torch.func` ask for substitutes while any thread traces a body.

    An interrupt may come between any two calls. So a body is noted before anything is done for it, and `end` undoes
    what was done, however much that was and however often it is called.
    """

    def __init__(self) -> None:
        self._lock = lock()
        self._bodies: dict[int, None] = {}
        self._in_force = ExitStack()

    def begin(self, body: int) -> None:
        with self._lock:
            self._bodies[body] = None
            if not private.are_given_to_transforms():
                self._in_force.enter_context(private.given_to_transforms(substituted))

    def end(self, body: int) -> None:
        with self._lock:
            self._bodies.pop(body, None)
            if not self._bodies:
                self._in_force.close()


_transforms = _Transforms()


class Substitution(TorchFunctionMode):
    """Replace some tensors in each call of a PyTorch function, except in bodies that are traced inside this one.

    Selections by tensors run on the device. `selections` checks that the program cannot distinguish them from views.
    """

    def __init__(
        self, substitute: Callable[[torch.Tensor], torch.Tensor], selections: Selections | None = None
    ) -> None:
        super().__init__()
        self._substitute = substitute
        self._selections = selections
        self._depth = -1  # of the body that it is entered in

    def __enter__(self) -> "Substitution":
        self._depth = _here.depth
        try:
            _transforms.begin(id(self))
            _here.substitutions.append(self)
            return super().__enter__()
        except BaseException:
            self.end()
            raise

    def __exit__(self, *raised: object) -> None:
        self.end()

    def end(self) -> None:
        """Undo all that `__enter__` did. The caller does so after an interrupt in `__exit__`."""
        private.leave_function_mode(self)
        if self in _here.substitutions:
            _here.substitutions.remove(self)
        _transforms.end(id(self))

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        kwargs = kwargs or {}
        if self._depth != _here.depth:
            return func(*args, **kwargs)

        def call(*args: Any, **kwargs: Any) -> object:
            args, kwargs = pytree.tree_map_only(torch.Tensor, self._substitute, (args, kwargs))
            form = form_of(func, args) or lstsq.FORMS.get(func)
            if self._selections is not None:
                return self._selections.call(func, form, args, kwargs)
            return (form or func)(*args, **kwargs)

        lift = lifted.get(func) if isinstance(func, HigherOrderOperator) else None
        return call(*args, **kwargs) if lift is None else lift(func, call, args)

    def of(self, tensor: torch.Tensor, depth: int) -> torch.Tensor:
        """Return the tensor that functions receive for `tensor` at this depth of traced bodies."""
        return self._substitute(tensor) if self._depth == depth else tensor


def depth() -> int:
    """Return the number of bodies that are being traced, one inside of another."""
    return _here.depth


def substituted(tensor: torch.Tensor, depth: int | None = None) -> torch.Tensor:
    """Return the replacement of `tensor` in the body that is being traced, or in a body around it; else `tensor`."""
    for each in reversed(_here.substitutions):
        tensor = each.of(tensor, _here.depth if depth is None else depth)
    return tensor


@contextmanager
def by_itself() -> Iterator[None]:
    """Trace a body within a `with` block as if nothing were around it."""
    _here.depth += 1
    try:
        with private.outside_of_traces():
            yield
    finally:
        _here.depth -= 1


def refuse_transforms(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise if a transform of `torch.func` is around a loop: the transform cannot see into the loop."""
    if any(private.innermost(each) is not each for each in tensors):
        raise NotImplementedError(
            f"{name} inside of torch.func.grad, vmap or another transform. Transform the body instead, or use "
            f"torch.autograd.grad around the loop"
        )


class Whole:
    """A graph of functional operators: recorded as one operation, or called as it is where its caller is traced."""

    def __init__(self, module: GraphModule, kind: str) -> None:
        self.module = module
        self._kind = kind
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if is_traced():
            return list(self.module(*tensors))
        if self._compiled is None:
            self._compiled = compile_whole(self.module, kind=self._kind)
        return list(self._compiled(list(tensors)))


def _described(operator: Any, args: Sequence[Any]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the sizes and dtypes of a loop's results."""
    if operator is graph_while:
        return [(tuple(each.shape), each.dtype) for each in args[2]]
    graph, init, _, _, length, *_ = args
    output = next(node for node in graph.graph.nodes if node.op == "output")
    values = [node.meta["val"] for node in output.args[0]]
    found = [(tuple(each.shape), each.dtype) for each in values]
    return [*found[: len(init)], *(((length, *size), dtype) for size, dtype in found[len(init) :])]


def _make(operator: object, args: Sequence[object]) -> list[torch.Tensor]:
    device = next(leaf.device for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor))
    return [torch.empty(size, dtype=dtype, device=device) for size, dtype in _described(operator, args)]


for _operator in (graph_scan, graph_while):
    private.make_traceable(_operator, _make)
