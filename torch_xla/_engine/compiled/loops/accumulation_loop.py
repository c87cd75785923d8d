"""Gradients of the mean loss of a batch's slices, by a loop on the device: one program, one slice's activations."""

import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from ...compat.names.torch import gradient_hooks, hooks_after, version_of
from ...compat.names.torch_dynamo import default_partition
from .nested_loops import is_traced
from .scan_layers import modes_of
from .scan_loop import Recipe, run, trace, trace_by_itself

_PLAIN = (bool, int, float, str, type(None))


class _Step(nn.Module):
    """A step as a module that contains the model, so that the model's parameters can be exchanged for the call."""

    def __init__(self, model: nn.Module, step: Callable[..., object]) -> None:
        super().__init__()
        self.model = model
        self._step = step

    def forward(self, *args: object) -> Any:
        return self._step(*args)


class _Kept(dict[Any, tuple[Recipe, list[bool]]]):
    """The traces of one model. Copies and pickles of the model do not carry them."""

    def __reduce__(self) -> Any:
        return _Kept, ()


# Most traced steps kept for a model. A step that closes over other numbers is another step.
_MOST = 16


def accumulate(
    step: Callable[..., Any],
    slices: Sequence[torch.Tensor],
    model: nn.Module,
    carried: Sequence[Any],
    is_pure: bool,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Call `step` for each slice, add the gradients of the mean loss to the model's, and return the mean loss.

    Where gradients are switched off, there is only the loss.
    """
    wanted = torch.is_grad_enabled()
    carried = [_carried(each, slices[0].device) for each in carried]
    own = {f"model.{name}": each for name, each in model.named_parameters() if each.requires_grad and wanted}
    with torch.no_grad():
        start = [torch.zeros_like(each) for each in own.values()]
        init = (torch.zeros((), device=slices[0].device), start, list(carried))
        # Kept by the model itself, which the step holds: both are freed together.
        known = vars(model).setdefault("_xla_accumulations", _Kept()) if is_pure and not is_traced() else {}
        key = (_of_step(step), *map(_kind, (*slices, *carried)), wanted, *_of_model(model)) if is_pure else None
        found = known.get(key)
        if found is None:
            found = _traced(step, model, own, init, list(slices), wanted)
            for oldest in [*known][: max(0, len(known) + 1 - _MOST)]:
                del known[oldest]
            known[key] = found
        recipe, reached = found
        (total, sums, state), _ = run(recipe, init, list(slices), default_partition)
        for parameter, grad in itertools.compress(zip(own.values(), sums, strict=True), reached):
            parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)
            for hook in hooks_after(parameter):
                hook(parameter)
    return (total, *state) if carried else total


def _traced(
    step: Callable[..., Any],
    model: nn.Module,
    own: dict[str, nn.Parameter],
    init: Any,
    slices: list[torch.Tensor],
    wanted: bool,
) -> tuple[Recipe, list[bool]]:
    """Return a round as a loop, and which parameters its loss has a gradient by."""
    module = _Step(model, step)
    hooks = list(map(gradient_hooks, own.values()))
    reached: list[bool] = []
    count = len(slices[0])

    def once(carry: Any, given: Any) -> object:
        total, sums, state = carry
        with torch.set_grad_enabled(wanted):
            fresh = {name: each.detach().requires_grad_() for name, each in own.items()}
            versions = [version_of(each) for each in (*given, *state)]
            found = functional_call(module, fresh, (*given, *state))
            _check_unchanged([version_of(each) for each in (*given, *state)], versions, len(given))
            loss, *rest = found if isinstance(found, tuple | list) else (found,)
            _check(loss, rest, state)
            rest = [_as_before(each, before) for each, before in zip(rest, state, strict=True)]
            # As PyTorch/XLA does: each loss by itself, so that small dtypes do not overflow in the sum.
            loss = loss / count
            grads = torch.autograd.grad(loss, list(fresh.values()), allow_unused=True) if wanted else ()
            reached[:] = [each is not None for each in grads]
        changed = [_after_hooks(each, grad) for each, grad in zip(hooks, grads, strict=True)]
        added = [each if grad is None else each + grad for each, grad in zip(sums, changed, strict=True)]
        return (total + loss.detach(), added, [each.detach() for each in rest]), []

    recipe = trace(once, init, slices)
    trace_by_itself(recipe, init, slices)
    return recipe, reached


def _after_hooks(hooks: Sequence[Callable[..., Any]], grad: torch.Tensor | None) -> torch.Tensor | None:
    """Return the gradient of one slice after the hooks of its parameter."""
    for hook in hooks if grad is not None else ():
        found = hook(grad)
        grad = grad if found is None else found
    return grad


def _of_step(step: Callable[..., object]) -> object:
    """Return a key of a step: functions with equal code that close over equal values have equal keys.

    The kept trace holds the objects that the key compares by identity.
    """
    if isinstance(step, types.MethodType):
        return _of_step(step.__func__), id(step.__self__)
    if not isinstance(step, types.FunctionType):
        return id(step)
    held = [*(cell.cell_contents for cell in step.__closure__ or ()), *(step.__defaults__ or ())]
    held += (step.__kwdefaults__ or {}).values()
    return step.__code__, *((type(each), repr(each)) if isinstance(each, _PLAIN) else id(each) for each in held)


def _of_model(model: nn.Module) -> tuple[object, ...]:
    parameters = [(id(each), each.requires_grad, *map(id, gradient_hooks(each))) for each in model.parameters()]
    return *parameters, *map(id, model.buffers()), *modes_of(model)


def _kind(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _carried(value: object, device: torch.device) -> torch.Tensor:
    """Return a carried value as a tensor on `device`; it may be a number."""
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, device=device)


def _as_before(value: Any, before: torch.Tensor) -> torch.Tensor:
    """Return what became of a carried tensor: a step may return a number in its place."""
    return value if isinstance(value, torch.Tensor) else torch.full_like(before, value)


def _check_unchanged(now: Sequence[int], before: Sequence[int], slices: int) -> None:
    """Raise if a step has changed its arguments: the first are slices, the rest is carried."""
    for place, (version, known) in enumerate(zip(now, before, strict=True)):
        if version != known:
            what = f"slice {place}" if place < slices else f"carried tensor {place - slices}"
            raise RuntimeError(
                f"gradient_accumulation(): train_step changed its argument {place} ({what}) in place. The loop gives "
                f"it a copy, so the change would be lost outside. Change a .clone() of it, and return what is carried"
            )


def _check(loss: object, rest: Sequence[object], state: Sequence[object]) -> None:
    if not isinstance(loss, torch.Tensor) or loss.dim():
        came = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ValueError(f"train_step returns a loss without dimensions first; got {came}")
    if len(rest) != len(state):
        raise ValueError(
            f"train_step returns the loss and each of the {len(state)} carried tensors; got {len(rest)} behind the loss"
        )
