"""Loops whose number of rounds the device decides: condition and body are traced, and the whole is one operation."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..private import torch as private
from .backend import compile_whole
from .bodies import pure_graph
from .captures import Stage, with_captured


def while_loop(condition: Callable[..., Any], body: Callable[..., Any], carried: Sequence[Any]) -> Any:
    """What `carried` is after as many rounds of `body` as `condition` says."""
    start, tree = pytree.tree_flatten(tuple(carried))
    start = [as_tensor(leaf) for leaf in start]
    stage = Stage()
    described = [stage.describe(leaf) for leaf in start]
    again = stage.run(condition, *pytree.tree_unflatten(described, tree))
    check_condition(again)
    after = stage.run(body, *pytree.tree_unflatten(described, tree))
    check_carried("while_loop", described, tree, _as_tuple(after))
    if stage.written:
        raise RuntimeError(
            f"the body of while_loop writes to {_like(stage.captured[stage.written[0]])}, which it closes over; carry "
            f"the tensor and return what it becomes"
        )
    captured = stage.captured

    def of_leaves(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*tensors: torch.Tensor) -> Any:
            values = [tensor.clone() for tensor in tensors[: len(start)]]
            given = with_captured(function, captured, tensors[len(start) :])
            return given(*pytree.tree_unflatten(values, tree))

        return call

    def go_on(*tensors: torch.Tensor) -> torch.Tensor:
        return of_leaves(condition)(*tensors).reshape(()).bool().clone()  # type: ignore[no-any-return]

    def once(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(leaf.clone() for leaf in pytree.tree_leaves(_as_tuple(of_leaves(body)(*tensors))))

    def whole(*tensors: torch.Tensor) -> Any:
        operator: Any = private.while_loop
        return tuple(operator(go_on, once, tensors[: len(start)], tensors[len(start) :]))

    tensors = [*start, *(as_tensor(each) for each in captured)]
    with torch.no_grad():
        results = compile_whole(pure_graph(whole, tensors), kind="loop")(tensors)
    return pytree.tree_unflatten(list(results), tree)


def as_tensor(leaf: Any) -> torch.Tensor:
    """A leaf of what is carried, on the device."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach() if leaf.device.type == "xla" else leaf.detach().to("xla")
    if isinstance(leaf, bool | int | float | complex):
        return torch.tensor(leaf, device="xla")
    raise TypeError(f"a loop carries tensors and numbers; got a {type(leaf).__name__}")


def check_condition(result: Any) -> None:
    """Raises unless a condition gave one element."""
    if not isinstance(result, torch.Tensor) or result.numel() != 1:
        came = _like(result) if isinstance(result, torch.Tensor) else repr(result)
        raise TypeError(f"the condition of while_loop returns a tensor of one element; got {came}")


def check_carried(name: str, before: Sequence[torch.Tensor], tree: pytree.TreeSpec, after: Any) -> None:
    """Raises unless a body gave back what it was given: as many tensors in the same nesting, sizes and dtypes."""
    leaves, came = pytree.tree_flatten(after)
    if came != tree:
        raise ValueError(
            f"the body of {name} must return what it carries, of the structure\n  {tree}\nand returned\n  {came}"
        )
    for place, (old, new) in enumerate(zip(before, leaves, strict=True)):
        fits = isinstance(new, torch.Tensor) and new.shape == old.shape and new.dtype is old.dtype
        if not fits:
            got = _like(new) if isinstance(new, torch.Tensor) else repr(new)
            raise ValueError(
                f"the body of {name} returned {got} for leaf {place} of what it carries, which is {_like(old)}; size "
                f"and dtype must stay the same"
            )


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def _like(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"
