"""Pure functions of tensors: traced once for each kind of arguments, then recorded as one operation."""

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..compat.names.torch import dtypes_by_default, is_traced, pytree
from ..ir.call_plan import kinds_of
from ..tensor.device import current_index, device_at
from .single_trace import SingleTrace


class _Known(dict[Any, Callable[..., Any]]):
    """The graphs of one pure function by the kind of its arguments. It is compared by identity, for weak references."""

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


_all: "weakref.WeakSet[_Known]" = weakref.WeakSet()


class Kept:
    """The graphs of all pure functions: their number, and a way to forget them."""

    def __len__(self) -> int:
        return sum(map(len, list(_all)))

    def clear(self) -> None:
        """Forget everything: each function is traced again when it is called next."""
        for known in list(_all):
            known.clear()


def assume_pure(function: Callable[..., object], takes_seed: bool) -> Callable[..., object]:
    """Return `function`, traced once for each structure, size and dtype of its arguments."""
    known = _Known()
    _all.add(known)

    @functools.wraps(function)
    def pure(*args: object, **kwargs: object) -> object:
        seed = kwargs.pop("rng_seed", None) if takes_seed else None
        if is_traced():  # together with what is traced around it
            if seed is not None:
                raise NotImplementedError(
                    "a pure function is given rng_seed inside of a body or graph that is traced, whose random numbers "
                    "follow from those around it; call it without"
                )
            return function(*args, **kwargs)
        leaves, tree = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        key = (tree, *map(_kind, leaves), torch.is_grad_enabled(), *dtypes_by_default())
        compiled = known.get(key)
        if compiled is None:
            compiled = known[key] = _traced(function, leaves, tree)
        with _seeded(seed):
            return compiled(*tensors)

    return pure


def _traced(function: Callable[..., object], leaves: Sequence[object], tree: pytree.TreeSpec) -> SingleTrace:
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    static = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    def of_tensors(*tensors: torch.Tensor) -> object:
        filled = list(static)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        args, kwargs = pytree.tree_unflatten(filled, tree)
        return function(*args, **kwargs)

    return SingleTrace(of_tensors, [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])


def _kind(leaf: object) -> object:
    if isinstance(leaf, torch.Tensor):
        return (
            leaf.shape,
            leaf.stride(),
            leaf.dtype,
            leaf.device,
            leaf.requires_grad,
            isinstance(leaf, torch.nn.Parameter),
        )
    try:
        hash(leaf)
    except TypeError as error:
        raise TypeError(f"a pure function takes tensors and hashable values; got a {type(leaf).__name__}") from error
    return *kinds_of((leaf,)), leaf


@contextmanager
def _seeded(seed: Any) -> Iterator[None]:
    if seed is None:
        yield
        return
    generator = device_at(current_index()).generator
    state, first = generator.state, generator.initial_seed
    generator.seed(int(seed))
    try:
        yield
    finally:
        generator.state, generator.initial_seed = state, first
