"""Linear functions of JAX arrays whose transpose is given: the derivative of a function that PyTorch differentiates.

JAX's `custom_vjp` knows a transpose alone, so forward derivatives raise, and its `linear_call` neither a batch nor a
derivative by what the function depends on beside its linear arguments. So a call is an operation of JAX programs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.extend as jex
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

_primitive = jex.core.Primitive("torch_derivative")
_primitive.multiple_results = True


class LinearMap(Protocol):
    """A linear function for each `held`, arrays that it depends on, and its transpose. Equal maps share programs."""

    def apply(self, held: Sequence[jax.Array], given: Sequence[jax.Array]) -> list[jax.Array]:
        """Return the function of `given`."""

    def transpose(self, held: Sequence[jax.Array], given: Sequence[jax.Array]) -> list[jax.Array]:
        """Return the transposed function of `given`, which has the sizes of the results."""


@dataclass(frozen=True)
class _Batched:
    """A map of a batch: `axes` are those of the batch in what is held, 0 is that of all else."""

    map: LinearMap
    axes: tuple[int | None, ...]

    def apply(self, held: Sequence[jax.Array], given: Sequence[jax.Array]) -> list[jax.Array]:
        return jax.vmap(self.map.apply, (list(self.axes), 0))(list(held), list(given))  # type: ignore[no-any-return]

    def transpose(self, held: Sequence[jax.Array], given: Sequence[jax.Array]) -> list[jax.Array]:
        return jax.vmap(self.map.transpose, (list(self.axes), 0))(list(held), list(given))  # type: ignore[no-any-return]


def call(
    map: LinearMap, held: Sequence[jax.Array], given: Sequence[jax.Array], results: Sequence[jax.Array]
) -> list[jax.Array]:
    """Return `map.apply(held, given)`; `results` describes it, as arrays or as `jax.ShapeDtypeStruct`s do."""
    described = tuple(jax.core.ShapedArray(tuple(each.shape), each.dtype) for each in results)
    return list(_primitive.bind(*held, *given, map=map, count=len(held), results=described))


@_primitive.def_impl
def _run(*arrays: jax.Array, map: LinearMap, count: int, results: object) -> list[jax.Array]:
    return map.apply(arrays[:count], arrays[count:])


@_primitive.def_abstract_eval
def _described(*_: object, map: LinearMap, count: int, results: Sequence[object]) -> list[object]:
    return list(results)


def _batching_rule(
    arrays: Sequence[jax.Array], axes: Sequence[int | None], *, map: LinearMap, count: int, results: Sequence[jax.Array]
) -> tuple[list[jax.Array], list[int]]:
    size = next(each.shape[axis] for each, axis in zip(arrays, axes, strict=True) if axis is not None)
    given = [
        jnp.broadcast_to(each, (size, *each.shape)) if axis is None else jnp.moveaxis(each, axis, 0)
        for each, axis in zip(arrays[count:], axes[count:], strict=True)
    ]
    described: list[Any] = [jax.ShapeDtypeStruct((size, *each.shape), each.dtype) for each in results]
    batched = _Batched(map, tuple(axes[:count]))
    return call(batched, arrays[:count], given, described), [0] * len(described)


def _jvp_rule(
    primals: Sequence[jax.Array],
    tangents: Sequence[Any],
    *,
    map: LinearMap,
    count: int,
    results: Sequence[jax.Array],
) -> tuple[list[jax.Array], list[jax.Array]]:
    held, given = list(primals[:count]), list(primals[count:])
    moved = [place for place in range(count) if type(tangents[place]) is not ad.Zero]
    terms = []
    if any(type(each) is not ad.Zero for each in tangents[count:]):
        terms.append(call(map, held, [ad.instantiate_zeros(each) for each in tangents[count:]], results))
    if moved:

        def of(*chosen: jax.Array) -> list[jax.Array]:
            filled = list(held)
            for place, value in zip(moved, chosen, strict=True):
                filled[place] = value
            return map.apply(filled, given)

        terms.append(jax.jvp(of, [held[place] for place in moved], [tangents[place] for place in moved])[1])
    return call(map, held, given, results), [sum(each[1:], each[0]) for each in zip(*terms, strict=True)]


def _transpose_rule(
    given: Sequence[object], *operands: Any, map: LinearMap, count: int, results: Sequence[jax.Array]
) -> list[Any]:
    found = map.transpose(operands[:count], [ad.instantiate_zeros(each) for each in given])
    wanted = [ad.is_undefined_primal(each) for each in operands[count:]]
    return [None] * count + [each if is_wanted else None for each, is_wanted in zip(found, wanted, strict=True)]


mlir.register_lowering(_primitive, mlir.lower_fun(_run, multiple_results=True))
batching.primitive_batchers[_primitive] = _batching_rule
ad.primitive_jvps[_primitive] = _jvp_rule
ad.primitive_transposes[_primitive] = _transpose_rule
