"""Build computations operation by operation, as XLA's builder does, as graphs of JAX functions."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import torch

from .. import dtypes
from ..atomic import uncollected
from .xla_builder_ops import FORMS

# A description of a value: a `ShapeDtypeStruct`, or a tuple of descriptions.
Described = jax.ShapeDtypeStruct | tuple["Described", ...]

NAMES: dict[str, torch.dtype] = {n: dtype for dtype, n in dtypes.SHORT_NAMES.items() if dtype is not torch.complex32}


@dataclass(eq=False)
class Builder:
    """State shared by the operations of one computation."""

    name: str
    parameters: dict[int, "Node"] = field(default_factory=dict)


@dataclass(eq=False)
class Node:
    """One operation: its function of other operations' results, and the description of its result."""

    builder: Builder
    name: str
    compute: Callable[..., object] | None  # none for a parameter
    operands: tuple["Node", ...]
    described: Described
    position: int = -1

    def computation(self, name: str) -> "Computation":
        """Return the computation that ends in this operation. Raises `ValueError` where a parameter is missing."""
        known = self.builder.parameters
        missing = sorted(set(range(max(known, default=-1) + 1)) - set(known))
        if missing:
            raise ValueError(f"computation {name!r} has parameters {sorted(known)}; number {missing[0]} is missing")
        return Computation(name, [known[number].described for number in sorted(known)], self)


class Computation:
    """A function of arrays (and of tuples of arrays) that a builder made."""

    def __init__(self, name: str, parameters: Sequence[Described], root: Node) -> None:
        self.name = self.__name__ = name
        self.parameters = list(parameters)
        self._root = root

    @property
    def described(self) -> Described:
        """Describe the result."""
        return self._root.described

    def __call__(self, *arrays: object) -> Any:
        if len(arrays) != len(self.parameters):
            raise TypeError(f"computation {self.name!r} takes {len(self.parameters)} values; got {len(arrays)}")
        found: dict[Node, Any] = {}
        with jax.enable_x64(True):
            for node in _in_order(self._root):
                operands = [found[each] for each in node.operands]
                found[node] = arrays[node.position] if node.compute is None else node.compute(*operands)
        return found[self._root]


def _in_order(root: Node) -> Iterator[Node]:
    """Yield the operations that lead to `root`, each after its operands."""
    done: set[Node] = set()
    open_nodes = [(root, False)]
    while open_nodes:
        node, seen = open_nodes.pop()
        if node in done:
            continue
        if seen:
            done.add(node)
            yield node
        else:
            open_nodes.append((node, True))
            open_nodes += ((each, False) for each in reversed(node.operands) if each not in done)


def parameter(builder: Builder, number: int, described: Described) -> Node:
    """Return parameter `number` of the computation. Raises `ValueError` for a number that is taken."""
    if number in builder.parameters:
        raise ValueError(f"builder {builder.name!r} has a parameter {number} already")
    node = builder.parameters[number] = Node(builder, "Parameter", None, (), described, number)
    return node


@uncollected
def operation(name: str, builder: Builder, operands: Sequence[Node], keywords: Mapping[str, object]) -> Node:
    """Return one operation; a mistake in its operands is raised here, in XLA's or JAX's words, behind the operation's
    name.
    """
    form = FORMS.get(name)
    if form is None:
        raise ValueError(f"the builder has no operation {name!r}; it has {', '.join(sorted(FORMS))}")
    other = next((each.builder for each in operands if each.builder is not builder), None)
    if other is not None:
        raise ValueError(
            f"{name} takes operands of one builder; got some of {builder.name!r} and {other.name!r}. A value of one "
            f"computation enters another as a parameter."
        )
    compute = functools.partial(form, **keywords)
    try:
        with jax.enable_x64(True):
            described = jax.eval_shape(compute, *(each.described for each in operands))
    except (TypeError, ValueError) as error:
        given = ", ".join(text_of(each.described) for each in operands)
        raise type(error)(f"{name}({given}): {error}") from error
    return Node(builder, name, compute, tuple(operands), described)


def array_of(described: Described) -> jax.ShapeDtypeStruct:
    """Return the description of one array. Raises `TypeError` for a tuple's."""
    if not isinstance(described, jax.ShapeDtypeStruct):
        raise TypeError(f"this is a tuple of {len(described)}; take an element with get_tuple_element")
    return described


def array(name: str, sizes: Sequence[int]) -> jax.ShapeDtypeStruct:
    """Return an array of the element type that XLA calls `name`. Raises `ValueError` for an unknown one."""
    return jax.ShapeDtypeStruct(tuple(sizes), jax_dtype(name))


def jax_dtype(name: str) -> np.dtype:
    """Return the element type that XLA calls `name`."""
    if name not in NAMES:
        raise ValueError(f"{name!r} is no element type; known are {', '.join(NAMES)}")
    return dtypes.to_jax(NAMES[name])


def name_of(dtype: Any) -> str:
    """Return what XLA calls an element type of JAX."""
    return dtypes.SHORT_NAMES[dtypes.to_torch(dtype)]


def text_of(described: Described) -> str:
    """Return a description as XLA writes it: `f32[2,3]`."""
    if isinstance(described, jax.ShapeDtypeStruct):
        return f"{name_of(described.dtype)}[{','.join(map(str, described.shape))}]"
    return f"({', '.join(map(text_of, described))})"


def hlo_text(computation: Any, described: Sequence[Described]) -> str:
    """Return the computation as HLO text, before XLA optimises it."""
    with jax.enable_x64(True):
        return str(jax.jit(computation, keep_unused=True).lower(*described).as_text("hlo"))
