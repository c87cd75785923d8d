"""Record PyTorch's own loops and branches: trace their bodies, record the whole as one operation."""

import functools
import logging
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from ... import metrics
from ...caching.bounded import put_last
from ...compat.names import torch as private
from ...compat.names.torch import pytree
from ..dynamo.host_device_split import Unsplittable
from .loop_bodies import traced_call

_log = logging.getLogger("torch_xla.dynamo")

# By the first function of a call, which must still live, and by what else it was called with.
_MOST = 256
_known: "weakref.WeakKeyDictionary[object, dict[Hashable, Callable[..., object]]]" = weakref.WeakKeyDictionary()


def run(operator: Any, args: object, kwargs: object) -> object:
    """Return the result of `operator`, recorded; or composed by PyTorch, where the device cannot run it as one."""
    leaves, tree = pytree.tree_flatten((args, kwargs))
    functions = [leaf for leaf in leaves if callable(leaf)]
    key = (operator, tree, *map(_kind, leaves))
    known = _known.setdefault(functions[0], {})
    call = known.get(key)
    if call is None:
        try:
            call = traced_call(operator, leaves, tree)
        except Unsplittable as reason:
            metrics.count("DynamoGraphByOperator")
            _log.warning("%s runs on the host: %s", operator, reason)
            call = functools.partial(_composed, operator, leaves, tree)
        put_last(known, key, call, _MOST)
    return call([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])


def _composed(
    operator: object, leaves: Sequence[object], tree: pytree.TreeSpec, tensors: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    given = iter(tensors)
    filled = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(filled, tree)
    return private.composition_of(operator)(*args, **kwargs)


def _kind(leaf: object) -> object:
    if isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device
    return weakref.ref(leaf) if callable(leaf) else (type(leaf), leaf)
