"""Loops on the device: one program, whatever the number of rounds, and no read on the host."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._engine.compat.names.torch import constant_in_graphs, pytree
from .._engine.compiled.loops import while_loops
from .scan import scan


def while_loop(
    cond_fn: Callable[..., object],
    body_fn: Callable[..., object],
    carried_inputs: Sequence[object],
    additional_inputs: Sequence[object] | None = None,
) -> Sequence[torch.Tensor]:
    """Run `carried = body_fn(*carried, *additional)` on the device while `cond_fn(*carried, *additional)` holds.

    `carried_inputs` is a tuple of tensors and numbers, nested as you like; `body_fn` returns the same with the same
    sizes and dtypes, and `cond_fn` a tensor of one element. Both may close over tensors and draw random numbers. Each
    is traced once at every call; equal loops share a program. Since the number of rounds is not known, the loop has
    no gradient, and `backward()` raises `RuntimeError`. If the number is known, use `fori_loop` or
    `torch_xla.experimental.scan`. Assertions on values inside the loop are left out.

    Raises `ValueError` if the results of `body_fn` do not have the form of `carried_inputs`, `TypeError` for a
    condition that is not a tensor of one element, `RuntimeError` if the body writes to a tensor that it closes over.

    >>> import torch
    >>> from torch_xla.experimental.fori_loop import while_loop
    >>> x = torch.tensor(2.0, device="xla")
    >>> def improve(count, guess):
    ...     return count + 1, (guess + 2.0 / guess) / 2
    >>> rounds, root = while_loop(lambda count, guess: (guess * guess - 2).abs() > 1e-6, improve, (0, x))
    >>> rounds.item(), round(root.item(), 5)
    (4, 1.41421)
    """
    additional = tuple(additional_inputs or ())
    return while_loops.while_loop(
        lambda *carried: cond_fn(*carried, *additional), lambda *carried: body_fn(*carried, *additional), carried_inputs
    )


def fori_loop(lower: object, upper: object, body_fun: Callable[..., object], *input_value: object) -> Any:
    """Run `value = body_fun(i, *value)` on the device for `i` from `lower` to `upper` - 1: numbers or tensors.

    `body_fun` returns the next value: a tensor, or a tuple for several values, of the same sizes and dtypes. The result
    is the last value in the same form. If both bounds are Python integers, the loop has gradients, as `scan`; with a
    tensor as bound it has none, as `while_loop`.

    A function whose signature has only the values is called without `i`, as PyTorch/XLA does. The result is then that
    of PyTorch/XLA: a list of the remaining rounds (zero) and the values.

    Raises `ValueError` if `body_fun` returns anything else.

    >>> import torch
    >>> from torch_xla.experimental.fori_loop import fori_loop
    >>> fori_loop(0, 5, lambda i, x: x + i, torch.zeros(2, device="xla"))
    tensor([10., 10.], device='xla:0')
    >>> _, doubled = fori_loop(0, 5, lambda x: x * 2, torch.ones(2, device="xla"))
    >>> doubled
    tensor([32., 32.], device='xla:0')
    """
    if not input_value:
        raise TypeError("fori_loop() needs at least one value that the body changes")
    if _takes_values_alone(body_fun, len(input_value)):
        values = fori_loop(lower, upper, lambda i, *value: body_fun(*value), *input_value)
        left = (while_loops.as_tensor(upper) - while_loops.as_tensor(lower)).clamp(max=0)
        return [left, *(values if len(input_value) > 1 else [values])]
    if isinstance(lower, int) and isinstance(upper, int) and torch.is_grad_enabled():
        results = _counted(range(lower, upper), body_fun, input_value)
    else:
        limit = while_loops.as_tensor(upper).to(torch.int64)

        def once(i: torch.Tensor, *value: object) -> Sequence[torch.Tensor]:
            return (i + 1, *_next(body_fun, i, value))

        start = while_loops.as_tensor(lower).to(torch.int64)
        _, *results = while_loops.while_loop(lambda i, *_: i < limit, once, (start, *input_value))
    return results[0] if len(results) == 1 else tuple(results)


@constant_in_graphs
def _takes_values_alone(body: Callable[..., object], count: int) -> bool:
    """Return whether a body can be called with `count` values, and not with one more argument."""
    try:
        signature = inspect.signature(body)
    except (TypeError, ValueError):
        return False  # functions of C without a signature

    def accepts(number: int) -> bool:
        try:
            signature.bind(*range(number))
        except TypeError:
            return False
        return True

    return accepts(count) and not accepts(count + 1)


def _counted(rounds: range, body: Callable[..., object], start: Sequence[object]) -> Sequence[Any]:
    start = pytree.tree_map(while_loops.as_tensor, tuple(start))
    if not rounds:
        return start
    numbers = torch.arange(rounds.start, rounds.stop, device=pytree.tree_leaves(start)[0].device)
    results: Sequence[torch.Tensor]
    results, _ = scan(lambda value, i: (_next(body, i, value), None), start, numbers)
    return results


def _next(body: Callable[..., object], i: torch.Tensor, value: tuple[object, ...]) -> Sequence[torch.Tensor]:
    """Run a round, check that its results can enter the next round, and return them."""
    result = body(i, *value)
    after = tuple(result) if isinstance(result, tuple | list) else (result,)
    if len(after) != len(value):
        given = f"{len(value)} value{'s' if len(value) > 1 else ''}"
        raise ValueError(
            f"fori_loop(): the body takes {given} and returned {len(after)}. Pass several values as arguments, "
            "`fori_loop(lower, upper, body, a, b)`, and return as many in a tuple"
        )
    if not torch.compiler.is_dynamo_compiling():
        while_loops.check_carried("fori_loop", *pytree.tree_flatten(value), after)
    return after
