"""While loops: trace condition and body, and record the whole as one operation."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...compat.names.torch import pytree
from . import branches as branches
from .closure_captures import Tracing, with_captured
from .loop_bodies import pure_graph
from .nested_loops import Whole, is_traced, refuse_transforms, substituted
from .scan_gradients import around_while
from .storage_aliasing import like


def while_loop(condition: Callable[..., object], body: Callable[..., object], carried: Sequence[object]) -> Any:
    """Run `body` on `carried` while `condition` holds, and return the last carried values."""
    return Loop(condition, body, carried).run(carried)


class Loop:
    """A condition and a body, traced for what is carried being like this."""

    def __init__(
        self, condition: Callable[..., object], body: Callable[..., object], carried: Sequence[object]
    ) -> None:
        leaves, self._tree = pytree.tree_flatten(tuple(carried))
        self._condition, self._body, self._count = condition, body, len(leaves)
        stage = Tracing()
        described = [stage.describe(as_tensor(leaf)) for leaf in leaves]
        for leaf, fake in zip(leaves, described, strict=True):
            stage.give(fake, [stage.memory_of(leaf)] if isinstance(leaf, torch.Tensor) else [])
        check_condition(stage.run(condition, *pytree.tree_unflatten(described, self._tree)))
        after = stage.run(body, *pytree.tree_unflatten(described, self._tree))
        check_carried("while_loop", described, self._tree, _as_tuple(after))
        self._captured = stage.captured
        if stage.written:
            raise RuntimeError(
                f"the body of while_loop writes to {like(self._captured[stage.written[0]])}, which it closes over; "
                f"carry the tensor and return what it becomes"
            )
        stage.check_arguments(pytree.tree_leaves(_as_tuple(after)))
        examples = [*described, *map(stage.describe, self._captured)]
        goes_on, once = pure_graph(self._goes_on, examples), pure_graph(self._once, examples)
        self._whole = Whole(around_while(goes_on, once, self._count), kind="loop")

    def run(self, carried: Sequence[object]) -> tuple[torch.Tensor, ...]:
        """Run the loop and return the last carried values."""
        start = [as_tensor(leaf) for leaf in pytree.tree_leaves(tuple(carried))]
        tensors = [*start, *map(on_device, self._captured)]
        refuse_transforms("while_loop", tensors)
        results: Any = _ForwardOnly.apply(self._whole, *tensors)
        return pytree.tree_unflatten(list(results), self._tree)

    def _call(self, function: Callable[..., object], tensors: Sequence[torch.Tensor]) -> Any:
        values = [tensor.clone() for tensor in tensors[: self._count]]
        given = with_captured(function, self._captured, tensors[self._count :])
        return given(*pytree.tree_unflatten(values, self._tree))

    def _goes_on(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self._call(self._condition, tensors).reshape(()).bool().clone(),)

    def _once(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(leaf.clone() for leaf in pytree.tree_leaves(_as_tuple(self._call(self._body, tensors))))


def loop_of(
    function: Callable[..., object], key: Any, condition: Callable[..., Any], body: Callable[..., Any], carried: Any
) -> Loop:
    """Return a loop whose body follows from `function` and `key`: traced once for each kind of `carried` if there is
    one.
    """
    if key is None or not inspect.isfunction(function) or is_traced():
        return Loop(condition, body, carried)
    # Kept by the function itself, which the loop holds: both are freed together.
    known = vars(function).setdefault("_xla_loops", {})
    leaves, tree = pytree.tree_flatten(carried)
    key = (key, tree, torch.is_autocast_enabled("xla"), *((each.shape, each.dtype, each.device) for each in leaves))
    if key not in known:
        known[key] = Loop(condition, body, carried)
    found: Loop = known[key]
    return found


class _ForwardOnly(torch.autograd.Function):
    """A loop without a gradient: its number of rounds is unknown, so nothing can be saved for a backward pass."""

    @staticmethod
    def forward(ctx: Any, whole: Whole, *tensors: torch.Tensor) -> object:
        results = tuple(whole([each.detach() for each in tensors]))
        ctx.mark_non_differentiable(*(each for each in results if not (each.is_floating_point() or each.is_complex())))
        return results

    @staticmethod
    def backward(ctx: object, *grads: torch.Tensor) -> object:
        raise RuntimeError(
            "a gradient is asked of while_loop (or of fori_loop with bounds that are tensors), which has none: how "
            "many rounds there were is known to the device alone, so nothing was kept of them. Use fori_loop with "
            "bounds that are Python integers, or torch_xla.experimental.scan; or `.detach()` what the loop gives"
        )


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that a loop uses, or its replacement in the traced body, on the device."""
    tensor = substituted(tensor)
    return tensor if tensor.device.type == "xla" else tensor.to("xla")


def as_tensor(leaf: object) -> torch.Tensor:
    """Return a leaf of the carried structure as a tensor on the device."""
    if isinstance(leaf, torch.Tensor):
        return on_device(leaf)
    if isinstance(leaf, bool | int | float | complex):
        return torch.tensor(leaf, device="xla")
    raise TypeError(f"a loop carries tensors and numbers; got a {type(leaf).__name__}")


def check_condition(result: object) -> None:
    """Raise unless a condition returned one element."""
    if not isinstance(result, torch.Tensor) or result.numel() != 1:
        raise TypeError(f"the condition of while_loop returns a tensor of one element; got {like(result)}")


def check_carried(name: str, before: Sequence[object], tree: pytree.TreeSpec, after: object) -> None:
    """Raise unless a body returned its carry's form: tensors of the same nesting, sizes and dtypes; equal others."""
    leaves, came = pytree.tree_flatten(after)
    if came != tree:
        raise ValueError(
            f"the body of {name} must return what it carries, of the structure\n  {tree}\nand returned\n  {came}"
        )
    for place, (old, new) in enumerate(zip(before, leaves, strict=True)):
        if not _are_alike(old, new):
            raise ValueError(
                f"the body of {name} returned {like(new)} for leaf {place} of what it carries, which is {like(old)}; "
                f"size and dtype must stay the same"
            )


def _are_alike(old: object, new: object) -> bool:
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        return new.shape == old.shape and new.dtype is old.dtype
    return not isinstance(old, torch.Tensor) and not isinstance(new, torch.Tensor) and bool(new is old or new == old)


def _as_tuple(result: object) -> tuple[object, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)
