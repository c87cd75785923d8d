"""Loops over the slices of tensors. The body is traced and compiled once, whatever the number of rounds."""

import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._engine.caching.bounded import put_last
from .._engine.compat import removed_names
from .._engine.compat.names.torch import (
    associative_scan_function,
    constant_in_graphs,
    dtypes_by_default,
    must_be_one_graph,
    pytree,
    scan_function,
)
from .._engine.compiled.loops import scan_loop
from .._engine.compiled.loops.scan_loop import default_partition as default_partition
from ..core.builder_parameters import Parameters
from ..core.builder_slices import dynamic_slice as dynamic_slice
from ..core.builder_slices import dynamic_update_slice as dynamic_update_slice

__getattr__ = removed_names.asked_of(__name__)

_MOST = 256  # of a function
_recipes: "weakref.WeakKeyDictionary[Any, dict[Any, scan_loop.Recipe]]" = weakref.WeakKeyDictionary()


def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    init: object,
    xs: object,
    partition_fn: Callable[..., object] = default_partition,
    is_fn_pure: bool = False,
) -> tuple[Any, Any]:
    """Apply `carry, y = fn(carry, x)` to the slices `x` of `xs` along their first dimension, as one operation.

    `init`, `xs` and the results of `fn` are tensors or nested structures of tensors; the carry keeps its structure,
    sizes and dtypes. Returns the last carry and the stacked `y`s. `fn` may close over tensors, including parameters,
    which get gradients; it must not write to them: carry what changes. It may draw random numbers, which differ in each
    round. It may write to its arguments, which do not change outside.

    `partition_fn` decides which values the backward pass reads and which it recomputes: `default_partition` keeps the
    values of the forward pass, `functorch.compile.min_cut_rematerialization_partition` the fewest from which the others
    can be computed. With `is_fn_pure`, `fn` is traced once for each kind of arguments, otherwise at every call.
    Gradients have gradients, in one more pass over the rounds. Assertions on values inside `fn` are left out.

    `torch.compile` breaks its graph at a scan. With `fullgraph=True` PyTorch's own scan replaces it in the graph:
    `partition_fn` must then have its default value.

    Without slices there are no rounds: the carry is `init`, and the `y`s are empty (PyTorch's own scan raises).

    Raises `ValueError` for a body whose carry changes its form, and for `xs` that have unequal lengths or no tensor;
    `RuntimeError` for a body that writes to a tensor from outside.

    >>> import torch
    >>> from torch_xla.experimental.scan import scan
    >>> weight = torch.tensor(2.0, device="xla", requires_grad=True)
    >>> def step(total, x):
    ...     total = total + weight * x
    ...     return total, total.square()
    >>> total, squares = scan(step, torch.zeros((), device="xla"), torch.arange(1.0, 4.0, device="xla"))
    >>> squares
    tensor([  4.,  36., 144.], device='xla:0', grad_fn=...)
    >>> total.backward()
    >>> weight.grad
    tensor(6., device='xla:0')
    """
    if not callable(fn):
        raise ValueError(f"scan() takes a function of carry and slice; got a {type(fn).__name__}")
    if torch.compiler.is_dynamo_compiling() and partition_fn is default_partition and _must_be_one_graph():
        return _in_one_graph(fn, init, xs)
    _check_lengths(xs)
    # Inside of another body what `fn` closes over may belong to that body.
    is_kept = is_fn_pure and not scan_loop.is_traced() and not inspect.ismethod(fn)
    known = _recipes.setdefault(fn, {}) if is_kept else {}
    leaves, tree = pytree.tree_flatten((init, xs))
    key = (tree, partition_fn, torch.is_grad_enabled(), *dtypes_by_default(), *map(_kind, leaves))
    recipe = known.get(key)
    if recipe is None:
        recipe = scan_loop.trace(_weakly(fn) if is_kept else fn, init, xs)
        scan_loop.refuse_writes(recipe)
        put_last(known, key, recipe, _MOST)
    return scan_loop.run(recipe, init, xs, partition_fn)


def value_and_grad_partitioned(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    partition_fn: Callable[..., Any] = default_partition,
    is_fn_pure: bool = True,
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Return the two directions of one round of `scan`, for programs that run the rounds themselves.

    `forward(carry, x)` returns `(new_carry, (y, activations))`. `backward(grad_carry, (grad_y, activations))` returns
    `(grad_carry, grad_x)`: the gradients by what `forward` was given; those by tensors that `fn` closes over are not
    computed. `alias_input(activations, xs)`, between the two, returns the activations. The activations are the carry
    and the slice, from which the backward direction computes the rest again, so that `init`, `xs`, `partition_fn` and
    `is_fn_pure` decide nothing.

    >>> import torch
    >>> from torch_xla.experimental.scan import value_and_grad_partitioned
    >>> carry, x = torch.ones(2, device="xla"), torch.full((2,), 3.0, device="xla")
    >>> forward, _, backward = value_and_grad_partitioned(lambda c, x: (c * x, c + x), carry, x[None])
    >>> new_carry, (y, activations) = forward(carry, x)
    >>> [each.tolist() for each in backward(torch.ones_like(carry), (torch.zeros_like(y), activations))]
    [[3.0, 3.0], [1.0, 1.0]]
    """

    def forward(carry: object, x: object) -> object:
        with torch.no_grad():
            new_carry, y = fn(carry, x)
        return new_carry, (y, (carry, x))

    def alias_input(activations: object, xs: object) -> object:
        return activations

    def backward(grad_carry: Any, grads: Any) -> object:
        grad_y, activations = grads
        leaves, tree = pytree.tree_flatten(activations)
        fresh = [_differentiable(leaf) for leaf in leaves]
        with torch.enable_grad():
            results = scan_loop.tensors_in(fn(*pytree.tree_unflatten(fresh, tree)))
        given = scan_loop.tensors_in((grad_carry, grad_y))
        reached = [(each, grad) for each, grad in zip(results, given, strict=True) if each.requires_grad]
        wanted = [leaf for leaf in fresh if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        found: Any = [None] * len(wanted)
        if reached and wanted:
            outputs, weights = zip(*reached, strict=True)
            found = torch.autograd.grad(outputs, wanted, weights, allow_unused=True)
        by_leaf = {id(leaf): grad for leaf, grad in zip(wanted, found, strict=True)}
        filled = [_gradient_of(leaf, by_leaf.get(id(leaf))) for leaf in fresh]
        return pytree.tree_unflatten(filled, tree)

    return forward, alias_input, backward


def _differentiable(leaf: object) -> object:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    fresh = leaf.detach()
    return fresh.requires_grad_() if fresh.is_floating_point() or fresh.is_complex() else fresh


def _gradient_of(leaf: object, grad: torch.Tensor | None) -> object:
    return grad if grad is not None or not isinstance(leaf, torch.Tensor) else torch.zeros_like(leaf)


def associative_scan(fn: Callable[[Any, Any], Any], xs: object, reverse: bool = False, dim: int = 0) -> torch.Tensor:
    """Return all prefix results of `fn`, an associative function of two elements, along dimension `dim` of `xs`.

    The elements are slices of `xs`, a tensor or a nested structure. `fn` is applied to many elements at once; the
    number of steps grows with the logarithm of the number of elements. With `reverse` it starts from the end. It has
    gradients.

    >>> import torch
    >>> from torch_xla.experimental.scan import associative_scan
    >>> associative_scan(torch.maximum, torch.tensor([1.0, 3.0, 2.0], device="xla"))
    tensor([1., 3., 3.], device='xla:0')
    """
    return associative_scan_function(fn, xs, dim, reverse, combine_mode="generic")


@constant_in_graphs
def _must_be_one_graph() -> bool:
    return must_be_one_graph()


def _in_one_graph(fn: Callable[[Any, Any], tuple[Any, Any]], init: object, xs: object) -> tuple[Any, Any]:
    """Run PyTorch's scan, which does not support results that are its arguments, or writes to its arguments."""

    def body(carry: object, x: object) -> Any:
        result = fn(*pytree.tree_map_only(torch.Tensor, torch.clone, (carry, x)))
        return pytree.tree_map_only(torch.Tensor, torch.clone, result)

    found: tuple[object, object] = scan_function(body, init, xs)
    return found


def _weakly(function: Callable[..., object]) -> Callable[..., Any]:
    """Return a callable that refers to `function` weakly, so that the cached recipe does not keep `function` alive."""
    found: Any = weakref.ref(function)
    return lambda *args: found()(*args)


def _check_lengths(xs: object) -> None:
    tensors = scan_loop.tensors_in(xs)
    if not tensors:
        raise ValueError("scan() needs at least one tensor in `xs`, whose length is the number of rounds")
    lengths = {tensor.shape[0] if tensor.dim() else None for tensor in tensors}
    if len(lengths) != 1 or None in lengths:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise ValueError(f"scan() needs `xs` of one length along their first dimension; got {shapes}")


def _kind(leaf: object) -> object:
    if isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad
    return type(leaf), repr(leaf)


class Builder(Parameters):
    """The parameters of a computation that is being built, and the tensors that they represent."""


def split(seq: Sequence[object], *part_lengths: int) -> tuple[Sequence[object], ...]:
    """Cut a sequence into parts of these lengths. Raises `ValueError` if they do not add up to its length.

    >>> from torch_xla.experimental.scan import split
    >>> split([1, 2, 3], 1, 2)
    ([1], [2, 3])
    """
    if sum(part_lengths) != len(seq):
        raise ValueError(
            f"split(): parts of {list(part_lengths)} make {sum(part_lengths)} elements; the sequence has {len(seq)}"
        )
    found, start = [], 0
    for length in part_lengths:
        found.append(seq[start : start + length])
        start += length
    return tuple(found)


def tree_flatten_none(tree: object) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Return the leaves of a nested structure that are not `None`, and a function that puts such leaves back.

    >>> from torch_xla.experimental.scan import tree_flatten_none
    >>> leaves, unflatten = tree_flatten_none({"a": 1, "b": None})
    >>> leaves, unflatten([2])
    ([1], {'a': 2, 'b': None})
    """
    leaves, spec = pytree.tree_flatten(tree)
    is_there = [leaf is not None for leaf in leaves]

    def unflatten(given: Sequence[object]) -> Any:
        rest = iter(given)
        return pytree.tree_unflatten([next(rest) if there else None for there in is_there], spec)

    return [leaf for leaf in leaves if leaf is not None], unflatten
