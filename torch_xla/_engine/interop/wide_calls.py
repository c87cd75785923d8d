"""Call functions that compute with 64-bit numbers from JAX programs traced without `jax_enable_x64`.

Without `jax_enable_x64` JAX narrows what it traces, also when it lowers or transforms an operation that was traced with
64 bits. So such a function is one operation of its caller's program: its body is traced, transformed and lowered with
64 bits, and what goes in and comes out has dtypes that the caller's program can hold.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from ..atomic import uncollected

_call_primitive = jex.core.Primitive("torch_graph")
_call_primitive.multiple_results = True


@uncollected
def traced(function: Callable[..., Sequence[Any]], arrays: Sequence[Any]) -> Any:
    """Trace `function` with 64 bits, for arrays of these sizes and dtypes; `call` takes the result."""
    with jax.enable_x64(True):
        return jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in arrays))


def call(body: object, arrays: Sequence[object]) -> list[jax.Array]:
    """Return the results of a traced body."""
    return list(_call_primitive.bind(*arrays, body=body))


def _function(body: object) -> Callable[..., list[Any]]:
    return jex.core.jaxpr_as_fun(body)  # type: ignore[no-any-return]


@_call_primitive.def_impl
def _run(*arrays: object, body: object) -> list[jax.Array]:
    return _compiled(body)(*arrays)  # type: ignore[no-any-return]


@functools.cache
def _compiled(body: object) -> Any:
    return jax.jit(lambda *arrays: call(body, arrays))


@_call_primitive.def_abstract_eval
def _described(*_: object, body: Any) -> list[object]:
    return list(body.out_avals)


def _lowering_rule(context: object, *operands: object, body: object) -> Any:
    with jax.enable_x64(True):
        return mlir.lower_fun(_function(body), multiple_results=True)(context, *operands)


def _batching_rule(arrays: Sequence[object], axes: Sequence[object], *, body: object) -> tuple[list[Any], list[int]]:
    found = call(traced(jax.vmap(_function(body), tuple(axes)), arrays), arrays)
    return found, [0] * len(found)


def _jvp_rule(primals: Sequence[object], tangents: Sequence[object], *, body: object) -> tuple[list[Any], list[Any]]:
    given = [place for place, each in enumerate(tangents) if type(each) is not ad.Zero]

    def linear(*arrays: object) -> list[jax.Array]:
        inputs = list(arrays[: len(primals)])

        def of(*chosen: object) -> list[jax.Array]:
            filled = list(inputs)
            for place, value in zip(given, chosen, strict=True):
                filled[place] = value
            return [each for each in _function(body)(*filled) if jnp.issubdtype(each.dtype, jnp.inexact)]

        return jax.jvp(of, [inputs[place] for place in given], list(arrays[len(primals) :]))[1]

    results = call(body, primals)
    operands = [*primals, *(tangents[place] for place in given)]
    found = iter(call(traced(linear, operands), operands))
    return results, [
        next(found) if jnp.issubdtype(each.dtype, jnp.inexact) else ad.Zero(jax.typeof(each).to_tangent_aval())
        for each in results
    ]


def _transpose_rule(given: Sequence[object], *operands: Any, body: object) -> list[object]:
    unknown = [place for place, each in enumerate(operands) if ad.is_undefined_primal(each)]
    known = [each for each in operands if not ad.is_undefined_primal(each)]
    given = [ad.instantiate_zeros(each) for each in given]
    described = [operands[place].aval for place in unknown]

    def pulled(*arrays: object) -> list[jax.Array]:
        rest = iter(arrays)
        filled = [None if ad.is_undefined_primal(each) else next(rest) for each in operands]

        def of(*chosen: object) -> list[Any]:
            for place, value in zip(unknown, chosen, strict=True):
                filled[place] = value
            return _function(body)(*filled)

        zeros = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in described]
        return list(jax.linear_transpose(of, *zeros)(list(arrays[len(known) :])))

    arrays = [*known, *given]
    found: list[Any] = [None] * len(operands)
    for place, gradient in zip(unknown, call(traced(pulled, arrays), arrays), strict=True):
        found[place] = gradient
    return found


mlir.register_lowering(_call_primitive, _lowering_rule)
batching.primitive_batchers[_call_primitive] = _batching_rule
ad.primitive_jvps[_call_primitive] = _jvp_rule
ad.primitive_transposes[_call_primitive] = _transpose_rule
