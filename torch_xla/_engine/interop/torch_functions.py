"""Functions of PyTorch tensors as functions of JAX arrays: JAX transforms them, and PyTorch differentiates them.

A function is traced for tensors of given sizes and dtypes, and its graph is interpreted in JAX by the rules that lower
recorded operations. Gradients are those of PyTorch's autograd, of any order: `detach`, `no_grad`, custom
`autograd.Function`s and the derivatives that PyTorch defines at kinks have the effect that they have in PyTorch.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule

from .. import dtypes
from ..atomic import uncollected
from ..compat.names.torch_dynamo import (
    FakeTensorMode,
    ShapeEnv,
    aot_export_joint_simple,
    default_partition,
    outside_of_traces,
)
from ..lowering.fx_graphs import decompositions, interpreter
from . import linear_maps, wide_calls

Function = Callable[..., Sequence[Tensor]]

_WIDE = {torch.int64: torch.int32, torch.uint64: torch.uint32, torch.float64: torch.float32}
_WIDE |= {torch.complex128: torch.complex64}


@dataclass(frozen=True, slots=True)
class TensorKind:
    """The size and the dtype of a tensor."""

    size: tuple[int, ...]
    dtype: torch.dtype

    @property
    def has_gradient(self) -> bool:
        """Return whether numbers of this dtype can be differentiated."""
        return self.dtype.is_floating_point or self.dtype.is_complex


def narrow(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which JAX holds numbers of `dtype`: 32 bits instead of 64 unless `jax_enable_x64` is set."""
    return dtype if jax.config.values["jax_enable_x64"] else _WIDE.get(dtype, dtype)


class MissingKey(TypeError):
    """A function draws random numbers, and got no key."""


class JaxFunction:
    """`function`, which takes tensors of these kinds and returns several, for arrays and a key of random numbers.

    `by_torch` has PyTorch differentiate. Otherwise JAX differentiates the operations themselves, also forward.
    """

    def __init__(self, function: Function, kinds: Sequence[TensorKind], by_torch: bool = True) -> None:
        self._function, self._kinds = function, tuple(kinds)
        self._graph = _Graph(_traced(function, kinds))
        self._differentiated: dict[tuple[int, ...], _Differentiated] = {}
        self._call: Callable[..., Sequence[jax.Array]] = _called_by_torch if by_torch else _called

    @property
    def module(self) -> GraphModule:
        """The graph of the function."""
        return self._graph.module

    def __call__(self, arrays: Sequence[object], key: object = None) -> list[jax.Array]:
        """Return the results for `arrays`. Raise `MissingKey` if the function draws and `key` is `None`."""
        return list(self._call(self, key, *arrays))

    def run(self, key: object, arrays: Sequence[object]) -> list[jax.Array]:
        """Return the results, which JAX differentiates."""
        return self._graph(key, arrays)

    def differentiated(self, needed: tuple[int, ...]) -> "_Differentiated":
        """Return the function with its gradients by the tensors at `needed`."""
        found = self._differentiated.get(needed)
        if found is None:
            _refuse_branches(self._graph.module)
            found = self._differentiated[needed] = _Differentiated(self, self._function, self._kinds, needed)
        return found


def _called(function: JaxFunction, key: object, *arrays: object) -> list[jax.Array]:
    return function.run(key, arrays)


def _called_and_moved(function: JaxFunction, primals: Any, tangents: Any) -> Any:
    key, *arrays = primals
    moved = {place: each for place, each in enumerate(tangents[1:]) if not _is_zero(each)}
    if not moved:
        outputs = function(arrays, key)
        return outputs, [_zero_at(each) for each in outputs]
    differentiated = function.differentiated(tuple(moved))
    outputs, saved = differentiated.forward(key, *arrays)
    return outputs, differentiated.moved(_Held(key, arrays, saved), outputs, list(moved.values()))


_called_by_torch: jax.custom_jvp[list[jax.Array]] = jax.custom_jvp(_called, nondiff_argnums=(0,))
_called_by_torch.defjvp(_called_and_moved, symbolic_zeros=True)


def _is_zero(tangent: object) -> bool:
    return isinstance(tangent, jax.custom_derivatives.SymbolicZero)


def _with_elements(tangent: jax.Array) -> jax.Array:
    return jnp.zeros(tangent.shape, tangent.dtype) if _is_zero(tangent) else tangent


def _zero_at(array: jax.Array) -> jax.Array:
    return jax.custom_derivatives.SymbolicZero(jax.typeof(array).to_tangent_aval())  # type: ignore[return-value]


class _Held(NamedTuple):
    """The point of a derivative, and the values that the computation saved there."""

    key: object
    arrays: list[jax.Array]
    saved: list[jax.Array]


@dataclass(frozen=True)
class _Derivative:
    """The derivative of a function by the tensors that it was `differentiated` by, as a linear map."""

    differentiated: "_Differentiated"
    tree: jax.tree_util.PyTreeDef

    def apply(self, held: Sequence[jax.Array], given: Sequence[jax.Array]) -> list[jax.Array]:
        return list(self.differentiated.tangents(jax.tree.unflatten(self.tree, held), list(given)))

    def transpose(self, held: Sequence[jax.Array], given: Sequence[jax.Array]) -> list[jax.Array]:
        # JAX's gradients by complex numbers are the conjugates of PyTorch's.
        found = self.differentiated.gradients(jax.tree.unflatten(self.tree, held), list(map(jnp.conj, given)))
        return list(map(jnp.conj, found))


@dataclass(frozen=True)
class _Curvature:
    """The derivative of forward derivatives by the inputs at `moved`, as a linear map.

    Its transpose is the gradient of gradients. PyTorch's third derivatives, which the derivative of a transposed
    gradient would be, are wrong for some operators, such as `layer_norm`.
    """

    differentiated: "_Differentiated"
    tree: jax.tree_util.PyTreeDef
    moved: tuple[int, ...]

    def apply(self, held: Sequence[jax.Array], given: Sequence[jax.Array]) -> list[jax.Array]:
        return list(_turned(self, list(held), list(given)))

    @uncollected
    def transpose(self, held: Sequence[jax.Array], given: Sequence[jax.Array]) -> list[jax.Array]:
        point, by = jax.tree.unflatten(self.tree, held)

        def of(*chosen: object) -> list[jax.Array]:
            arrays = list(point.arrays)
            for place, value in zip(self.moved, chosen, strict=True):
                arrays[place] = value
            return self.differentiated.second([*arrays, *map(jnp.conj, given)], point.key)

        _, pull = jax.vjp(of, *(point.arrays[place] for place in self.moved))
        return list(pull(list(map(jnp.conj, by))))


@uncollected
def _pushed_curvature(curvature: _Curvature, held: Sequence[jax.Array], given: Sequence[jax.Array]) -> list[jax.Array]:
    differentiated, (point, by) = curvature.differentiated, jax.tree.unflatten(curvature.tree, held)
    turned = functools.partial(differentiated.turned, point, by, curvature.moved)
    (found,) = jax.vjp(turned, differentiated.described())[1](list(given))
    return list(found)


def _third(curvature: _Curvature, primals: object, tangents: object) -> tuple[list[jax.Array], list[jax.Array]]:
    raise NotImplementedError(
        "a module has forward derivatives of forward derivatives, but no third ones of these. Make one of the three a "
        'gradient (jax.grad, jax.jacrev), or have JAX differentiate the module, as_jax(module, derivatives="jax").'
    )


_turned: jax.custom_jvp[list[jax.Array]] = jax.custom_jvp(_pushed_curvature, nondiff_argnums=(0,))
_turned.defjvp(_third)


class _Differentiated:
    """A function in two parts: the first saves values, the second computes gradients from them.

    A derivative of a derivative is that of PyTorch's gradients with `create_graph=True`: saved values are a
    function of the inputs, so only these pass a derivative on. Forward derivatives are the transposed gradients.
    """

    def __init__(self, owner: JaxFunction, function: Function, kinds: Sequence[TensorKind], needed: tuple[int, ...]):
        self._owner, self._function, self._kinds, self._needed = owner, function, tuple(kinds), needed
        self._outputs: list[TensorKind] = []
        given: list[bool] = []

        def noted(*tensors: Tensor) -> Sequence[Tensor]:
            results = function(*tensors)
            given[:] = [each.requires_grad for each in results]
            self._outputs[:] = [TensorKind(tuple(each.shape), each.dtype) for each in results]
            return results

        once, back = _partitioned(noted, kinds, needed, self._outputs)
        self._differentiable = [place for place, gives in enumerate(given) if gives]
        self._once = _Graph(once)
        self._back = _Graph(back)
        self._second: JaxFunction | None = None
        self.forward: jax.custom_jvp[tuple[list[jax.Array], list[jax.Array]]] = jax.custom_jvp(self._computed)
        self.forward.defjvp(self._computed_and_moved, symbolic_zeros=True)
        self.gradients: jax.custom_jvp[list[jax.Array]] = jax.custom_jvp(self._pulled)
        self.gradients.defjvp(self._pulled_and_moved, symbolic_zeros=True)
        self.tangents: jax.custom_jvp[list[jax.Array]] = jax.custom_jvp(self._pushed)
        self.tangents.defjvp(self._pushed_and_moved, symbolic_zeros=True)

    def _computed(self, key: object, *arrays: object) -> tuple[list[jax.Array], list[jax.Array]]:
        found, count = self._once(key, arrays), len(self._outputs)
        return found[:count], found[count:]

    def _computed_and_moved(self, primals: Any, tangents: Any) -> Any:
        key, *arrays = primals
        outputs, saved = self.forward(key, *arrays)
        moved = [place for place, each in enumerate(tangents[1:]) if not _is_zero(each)]
        if set(moved) <= set(self._needed):
            given = [_with_elements(tangents[1 + place]) for place in self._needed]
            found = self.moved(_Held(key, arrays, saved), outputs, given)
        else:
            found = _called_and_moved(self._owner, primals, tangents)[1]
        return (outputs, saved), (found, [_zero_at(each) for each in saved])

    def moved(self, held: _Held, outputs: Sequence[jax.Array], given: Sequence[jax.Array]) -> list[jax.Array]:
        """Return the tangents of the outputs, given those of the inputs that are needed."""
        found = [_zero_at(each) for each in outputs]
        if self._needed and self._differentiable:
            leaves, tree = jax.tree.flatten(held)
            described = [outputs[place] for place in self._differentiable]
            results = linear_maps.call(_Derivative(self, tree), leaves, given, described)
            for place, each in zip(self._differentiable, results, strict=True):
                found[place] = each
        return found

    def _pulled(self, held: _Held, given: Sequence[object]) -> list[jax.Array]:
        found = self._back(None, [*held.saved, *given])
        return [jnp.zeros_like(held.arrays[place]) if found[place] is None else found[place] for place in self._needed]

    def _pushed(self, held: _Held, given: Sequence[jax.Array]) -> list[jax.Array]:
        try:
            return self._transposed(self._pulled, held, given)
        except (NotImplementedError, AssertionError, TypeError, ValueError) as error:
            raise NotImplementedError(
                "a forward derivative (jax.jvp, jax.jacfwd, jax.hessian) of a module is its transposed backward pass, "
                f"and JAX cannot transpose this one ({type(error).__name__}: {error}). Take gradients of gradients "
                '(jax.jacrev(jax.jacrev(f))), or have JAX differentiate the module, as_jax(module, derivatives="jax").'
            ) from error

    @uncollected
    def _transposed(self, gradients: Callable[..., object], held: _Held, given: Sequence[jax.Array]) -> list[jax.Array]:
        """Return the tangents of the outputs, by the function that computes gradients."""
        # Gradients are linear in those of the outputs, so their derivative is the same anywhere.
        _, transpose = jax.vjp(functools.partial(gradients, held), self.described())
        (found,) = transpose(list(map(jnp.conj, given)))
        return list(map(jnp.conj, found))

    @property
    def second(self) -> JaxFunction:
        """The gradients as a function of the inputs and of gradients by the outputs, which PyTorch differentiates."""
        if self._second is None:
            kinds = [*self._kinds, *(self._outputs[place] for place in self._differentiable)]
            self._second = JaxFunction(self._gradient_again, kinds)
        return self._second

    @uncollected
    def _again(self, held: _Held, given: Sequence[jax.Array]) -> list[jax.Array]:
        return self.second([*held.arrays, *given], held.key)

    def turned(
        self, held: _Held, given: Sequence[jax.Array], moved: tuple[int, ...], pulled: Sequence[jax.Array]
    ) -> list[jax.Array]:
        """Return the transposed second derivative at `given` in one place, computed by JAX's operations alone."""
        again = self.second.differentiated(moved)
        arrays = [*held.arrays, *map(jnp.conj, pulled)]
        _, saved = again._computed(held.key, *arrays)
        by_outputs = [given[place] for place in again._differentiable]
        return list(map(jnp.conj, again._pulled(_Held(held.key, arrays, saved), by_outputs)))

    def described(self) -> list[jax.Array]:
        """Return zeros of the sizes of outputs that have gradients."""
        kinds = [self._outputs[place] for place in self._differentiable]
        return [jnp.zeros(kind.size, dtypes.to_jax(narrow(kind.dtype))) for kind in kinds]

    def _pulled_and_moved(self, primals: Any, tangents: Any) -> Any:
        return self.gradients(*primals), self._moved_again(self._again, primals, tangents)

    def _pushed_and_moved(self, primals: Any, tangents: Any) -> Any:
        held, given = primals
        outputs = self.tangents(held, given)
        terms: list[list[jax.Array]] = []
        if not all(map(_is_zero, tangents[1])):
            terms.append(self.tangents(held, list(map(_with_elements, tangents[1]))))
        moved = {place: each for place, each in enumerate(tangents[0].arrays) if not _is_zero(each)}
        if moved:
            leaves, tree = jax.tree.flatten((held, given))
            curvature = _Curvature(self, tree, tuple(moved))
            terms.append(linear_maps.call(curvature, leaves, list(moved.values()), outputs))
        return outputs, [sum(each[1:], each[0]) for each in zip(*terms, strict=True)] or list(map(_zero_at, outputs))

    @uncollected
    def _moved_again(self, function: Callable[..., list[jax.Array]], primals: Any, tangents: Any) -> list[jax.Array]:
        """Return the tangents of a function of the inputs and gradients, without those of saved values."""
        held, given = primals
        values, by = [*held.arrays, *given], [*tangents[0].arrays, *tangents[1]]
        moved = [place for place, each in enumerate(by) if not _is_zero(each)]

        def of(*chosen: object) -> list[jax.Array]:
            filled = list(values)
            for place, value in zip(moved, chosen, strict=True):
                filled[place] = value
            count = len(held.arrays)
            return function(held._replace(arrays=filled[:count]), filled[count:])

        if not moved:
            return [_zero_at(each) for each in jax.eval_shape(of)]
        return jax.jvp(of, [values[place] for place in moved], [by[place] for place in moved])[1]  # type: ignore[no-any-return]

    def _gradient_again(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Return the gradients of the function as PyTorch computes them, to be differentiated."""
        inputs, given = list(tensors[: len(self._kinds)]), tensors[len(self._kinds) :]
        with torch.enable_grad():
            for place in self._needed:
                if not inputs[place].requires_grad:
                    inputs[place] = inputs[place].detach().requires_grad_()
            outputs = self._function(*inputs)
            found = torch.autograd.grad(
                [outputs[place] for place in self._differentiable],
                [inputs[place] for place in self._needed],
                given,
                create_graph=True,
                materialize_grads=True,
            )
            return [each.clone() for each in found]


class _Graph:
    """A graph of functional operators, applied to arrays in the dtypes of JAX."""

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self._kinds = [_kind(node.meta["val"]) for node in module.graph.nodes if node.op == "placeholder"]
        drawing = [node for node in module.graph.nodes if interpreter.is_random(module, node)]
        self._draws = len(drawing)
        self._random = sorted({str(node.target) for node in drawing})
        self._bodies: dict[bool, object] = {}  # by whether JAX has 64-bit numbers
        self._missing: list[bool] = []

    def __call__(self, key: object, arrays: Sequence[object]) -> list[Any]:
        if self._random and key is None:
            raise MissingKey(", ".join(self._random))
        drawn = [_keys(key, self._draws)] if self._draws else []
        operands = [_cast(array, narrow(kind.dtype)) for array, kind in zip(arrays, self._kinds, strict=True)]
        operands += drawn
        is_wide = bool(jax.config.values["jax_enable_x64"])
        if is_wide not in self._bodies:
            function = functools.partial(self._interpreted, is_wide)
            self._bodies[is_wide] = wide_calls.traced(function, operands)
        found = iter(wide_calls.call(self._bodies[is_wide], operands))
        return [None if is_missing else next(found) for is_missing in self._missing]

    @uncollected
    def _interpreted(self, is_wide: bool, *arrays: jax.Array) -> list[jax.Array]:
        # The generator that the rules draw from has keys of four words.
        keys = jax.random.wrap_key_data(arrays[-1], impl="rbg") if self._draws else ()
        operands = [_cast(array, kind.dtype) for array, kind in zip(arrays, self._kinds, strict=False)]
        results = interpreter.interpret(self.module, operands, keys)
        self._missing = [each is None for each in results]
        results = [jnp.asarray(each) for each in results if each is not None]
        return results if is_wide else [_cast(each, _narrowed(each)) for each in results]


# Operators with bodies that PyTorch does not differentiate in a graph.
_BRANCHES = {"cond": "torch.cond", "while_loop": "while_loop"}


def _refuse_branches(module: GraphModule) -> None:
    graphs = [each.graph for each in module.modules() if isinstance(each, GraphModule)]
    targets = {str(node.target) for graph in graphs for node in graph.nodes if node.op == "call_function"}
    for name, shown in _BRANCHES.items():
        if name in targets:
            raise NotImplementedError(
                f"PyTorch has no gradients of {shown} for JAX. Have JAX differentiate the module, "
                f'as_jax(module, derivatives="jax"): it has gradients of torch.cond, and of a while_loop the forward '
                f"derivatives of jax.jvp."
            )


def _narrowed(array: jax.Array) -> torch.dtype:
    dtype = dtypes.to_torch(array.dtype)
    return _WIDE.get(dtype, dtype)


def _cast(array: Any, dtype: torch.dtype) -> jax.Array:
    return jax.lax.convert_element_type(array, dtypes.to_jax(dtype))


def _keys(key: Any, count: int) -> jax.Array:
    """Return the words of one key for each draw. Each depends on `key` and its place alone, not on how many follow."""
    return jnp.stack([jax.random.bits(jax.random.fold_in(key, place), (4,), np.uint32) for place in range(count)])


def _kind(value: Tensor) -> TensorKind:
    return TensorKind(tuple(value.shape), value.dtype)


@uncollected
def _traced(function: Function, kinds: Sequence[TensorKind]) -> GraphModule:
    """Return the graph of `function`, without gradients."""
    with outside_of_traces():
        graph: Any = aot_export_joint_simple(
            function, _described(kinds), trace_joint=False, decompositions=decompositions.table()
        )
    return graph  # type: ignore[no-any-return]


@uncollected
def _partitioned(
    function: Function, kinds: Sequence[TensorKind], needed: Sequence[int], outputs: Sequence[TensorKind]
) -> tuple[GraphModule, GraphModule]:
    """Return the graphs of the results of `function`, and of its gradients by the inputs at `needed`.

    The function fills `outputs` when it is called. The second graph has a result for each input.
    """
    with outside_of_traces():
        inputs = _described(kinds)
        for place in needed:
            inputs[place].requires_grad_()
        joint: Any = aot_export_joint_simple(function, inputs, trace_joint=True, decompositions=decompositions.table())
        tangents = [node.meta["val"] for node in joint.graph.nodes if node.name.startswith("tangents_")]
        once, back = default_partition(joint, (inputs, tangents), num_fwd_outputs=len(outputs))
    # Draws of the first part, which PyTorch keeps in the second although nothing reads them.
    back.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    back.recompile()
    return once, back


def _described(kinds: Sequence[TensorKind]) -> tuple[Tensor, ...]:
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True):
        return tuple(torch.empty(kind.size, dtype=kind.dtype, device="xla") for kind in kinds)
