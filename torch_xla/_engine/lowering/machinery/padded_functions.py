"""Run a function of symbolic sizes on arrays padded to a bucket: one program for all sizes within it.

`jax` traces the function with symbols for the sizes that change (`n`, `2*n - 1`). This module applies its operations to
arrays with capacity for the largest `n`. Only the first `n` elements are valid; `n` is an argument of the program. Most
operations do not mix elements and are applied unchanged. An operation that does (a sum, a product of matrices, a sort)
gets padding that does not change its result, so the valid elements are exact, whatever the rest holds. An operation
without such a rule raises `NotImplementedError`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...compat.names import jax as private


class Variable(Protocol):
    """A variable or a constant of a traced program."""

    @property
    def aval(self) -> jax.core.ShapedArray:
        """Return its size and dtype."""


class TracedEquation(Protocol):
    """A call in a traced program: JAX's own, or one that several traces have in common (`common_jaxpr`)."""

    @property
    def primitive(self) -> jex.core.Primitive:
        """Return the primitive that is called."""

    @property
    def invars(self) -> Sequence[Variable]:
        """Return the operands."""

    @property
    def outvars(self) -> Sequence[Variable]:
        """Return the results."""

    @property
    def params(self) -> dict[str, Any]:
        """Return its attributes: each primitive has its own."""


Rule = Callable[["SymbolSizes", TracedEquation, Sequence[jax.Array]], Sequence[jax.Array] | jax.Array]
_rules: dict[str, Rule] = {}


@dataclass(frozen=True)
class SymbolSizes:
    """The capacity of each symbol, and how many elements of it are valid: an array of no dimensions."""

    rooms: dict[str, int]
    counts: dict[str, Any]

    def room(self, size: object) -> int:
        """Return a size with the capacity of each symbol."""
        return int(size) if isinstance(size, int | np.integer) else int(private.size_for(size, self.rooms))

    def rooms_of(self, shape: Sequence[object]) -> tuple[int, ...]:
        """Return a shape with the capacity of each symbol."""
        return tuple(map(self.room, shape))

    def count(self, size: object) -> Any:
        """Return a size as it is in this run."""
        return size if isinstance(size, int | np.integer) else private.size_for(size, self.counts)

    def masked(self, array: Any, shape: Sequence[Any], dims: Sequence[int], fill: Any) -> jax.Array:
        """Return the array, of this symbolic shape, with `fill` behind the valid elements along some dimensions."""
        keep = self.counting(array.shape, shape, dims)
        return array if keep is None else jnp.where(keep, array, jnp.asarray(fill, array.dtype))

    def counting(self, size: Sequence[int], shape: Sequence[object], dims: Sequence[int]) -> jax.Array | None:
        """Return which elements are valid along some dimensions; nothing if all are."""
        keep: jax.Array | None = None
        for dim in dims:
            if not isinstance(shape[dim], int):
                here = lax.broadcasted_iota(np.int32, size, dim) < jnp.asarray(self.count(shape[dim]), np.int32)
                keep = here if keep is None else keep & here
        return keep


def bounded(closed: Any, symbols: Sequence[str], rooms: Sequence[int]) -> Callable[..., list[jax.Array]]:
    """Return the traced function as one of the valid sizes of `symbols` (int32) and of padded arrays.

    It returns padded arrays; `rooms` are the capacities of the symbols.
    """

    def run(counts: jax.Array, *arrays: jax.Array) -> list[jax.Array]:
        sizes = SymbolSizes(dict(zip(symbols, rooms, strict=True)), {s: counts[i] for i, s in enumerate(symbols)})
        return _evaluate(sizes, closed.jaxpr, closed.consts, arrays)

    return run


def _evaluate(
    sizes: SymbolSizes, jaxpr: Any, consts: Sequence[jax.Array], arrays: Sequence[jax.Array]
) -> list[jax.Array]:
    known: dict[object, jax.Array] = {}

    def value(atom: object) -> Any:
        if isinstance(atom, jex.core.Literal):
            return atom.val
        size = getattr(atom, "size", None)  # of a constant that changes with the sizes (`common_jaxpr`)
        if size is None:
            return known[atom]
        return lax.convert_element_type(sizes.count(size), atom.aval.dtype)  # type: ignore[attr-defined]

    known.update(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, arrays, strict=True))
    for equation in jaxpr.eqns:
        results = _apply(sizes, equation, [value(atom) for atom in equation.invars])
        known.update(zip(equation.outvars, results, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _apply(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
    name = equation.primitive.name
    inner = next((equation.params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in equation.params), None)
    if inner is not None and name in _CALLS:
        is_closed = hasattr(inner, "consts")
        return _evaluate(sizes, inner.jaxpr if is_closed else inner, inner.consts if is_closed else (), arrays)
    atoms = (*equation.invars, *equation.outvars)
    if all(isinstance(size, int) for atom in atoms for size in _shape(atom)) and name != "dim_as_value":
        found = equation.primitive.bind(*arrays, **equation.params)
    elif name in _ELEMENTWISE:
        found = equation.primitive.bind(*arrays, **_with_rooms(sizes, equation.params))
    elif name in _rules:
        found = _rules[name](sizes, equation, arrays)
    else:
        shapes = ", ".join(str(atom.aval.str_short()) for atom in equation.invars)
        raise NotImplementedError(
            f"a size that changes reaches {name} ({shapes}), which is not known to be exact on padded operands. "
            f"Compute it outside of the function, or give the function sizes that do not change"
        )
    return list(found) if equation.primitive.multiple_results else [found]


def _shape(atom: Variable) -> Sequence[object]:
    return getattr(atom.aval, "shape", ())  # a token has none


def is_call(name: str) -> bool:
    """Return whether a primitive of this name calls a program that is evaluated in its place."""
    return name in _CALLS


def _with_rooms(sizes: SymbolSizes, params: dict[str, Any]) -> dict[str, Any]:
    return {
        key: sizes.rooms_of(value) if key in ("shape", "new_sizes", "sizes") and value is not None else value
        for key, value in params.items()
    }


_CALLS = frozenset(
    ("jit", "pjit", "closed_call", "core_call", "remat", "checkpoint", "custom_jvp_call", "custom_vjp_call")
)

# Each element of the result depends on the elements at its position, or is along a dimension that does not change.
_ELEMENTWISE = frozenset(
    (
        "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
        "bitcast_convert_type", "broadcast_in_dim", "cbrt", "ceil", "clamp", "complex", "conj", "convert_element_type",
        "copy", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expand_dims", "expm1",
        "floor", "ge", "gt", "igamma", "igammac", "imag", "integer_pow", "iota", "is_finite", "le", "lgamma", "log",
        "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not", "optimization_barrier", "or",
        "polygamma", "population_count", "pow", "real", "reduce_precision", "regularized_incomplete_beta", "rem",
        "round", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin",
        "sinh", "sqrt", "square", "squeeze", "stack", "stop_gradient", "sub", "tan", "tanh", "transpose", "xor",
    )
)  # fmt: skip


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _rules.update(dict.fromkeys(names, rule))
        return rule

    return register


def _least(dtype: np.dtype) -> float:
    if dtype == np.bool_:
        return False
    return -np.inf if jnp.issubdtype(dtype, np.floating) else np.iinfo(dtype).min


def _most(dtype: np.dtype) -> float:
    if dtype == np.bool_:
        return True
    return np.inf if jnp.issubdtype(dtype, np.floating) else np.iinfo(dtype).max


_NEUTRAL: dict[str, Callable[[Any], Any]] = {
    "sum": lambda dtype: 0, "prod": lambda dtype: 1, "max": _least, "min": _most, "or": lambda dtype: 0,
    "and": lambda dtype: ~np.zeros((), dtype), "xor": lambda dtype: 0, "logsumexp": _least,
    "window_sum": lambda dtype: 0, "window_max": _least, "window_min": _most,
}  # fmt: skip


@_rule("cond")
def _cond(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[object]) -> list[jax.Array]:
    def branch(closed: Any) -> Callable[..., list[jax.Array]]:
        return lambda *operands: _evaluate(sizes, closed.jaxpr, closed.consts, operands)

    index, *operands = arrays
    branches = list(map(branch, equation.params["branches"]))
    platforms = equation.params.get("branches_platforms")
    if platforms is None:
        return lax.switch(index, branches, *operands)
    # A rule may depend on the platform, which is chosen when the program is lowered.
    named = {name: each for names, each in zip(platforms, branches, strict=True) for name in names or ("default",)}
    return lax.platform_dependent(*operands, **named)


@_rule("dim_as_value")
def _size(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[object]) -> jax.Array:
    return jnp.asarray(sizes.count(equation.params["dim"]), equation.outvars[0].aval.dtype)


@_rule(*(f"reduce_{kind}" for kind in ("sum", "prod", "max", "min", "and", "or", "xor")))
def _reduce(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> jax.Array:
    fill = _NEUTRAL[equation.primitive.name.removeprefix("reduce_")](arrays[0].dtype)
    array = sizes.masked(arrays[0], equation.invars[0].aval.shape, equation.params["axes"], fill)
    return equation.primitive.bind(array, **equation.params)


@_rule("reduce")
def _sum_from_a_number(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    array, start = arrays
    if [each.primitive.name for each in equation.params["jaxpr"].eqns] != ["add"]:
        raise NotImplementedError(f"of the reductions by a function, only sums take sizes that change: {equation}")
    # -0 changes no number that it is added to, nor a sum of nothing but -0.
    array = sizes.masked(array, equation.invars[0].aval.shape, equation.params["dimensions"], -0.0)
    return [lax.reduce(array, start, lambda left, right: left + right, equation.params["dimensions"])]


@_rule("argmax", "argmin")
def _place(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> jax.Array:
    (array,), shape, axes = arrays, equation.invars[0].aval.shape, equation.params["axes"]
    least = equation.primitive.name == "argmax"
    # The first of equal elements is chosen, which is in front of the padding.
    array = sizes.masked(array, shape, axes, (_least if least else _most)(array.dtype))
    return equation.primitive.bind(array, **equation.params)


@_rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulative(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> jax.Array:
    fill = _NEUTRAL[equation.primitive.name.removeprefix("cum")](arrays[0].dtype)
    array = sizes.masked(arrays[0], equation.invars[0].aval.shape, (equation.params["axis"],), fill)
    return equation.primitive.bind(array, **equation.params)


@_rule("dot_general")
def _product(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> jax.Array:
    contracted = equation.params["dimension_numbers"][0]
    pairs = zip(arrays, equation.invars, contracted, strict=True)
    # Mask both operands: infinity or NaN times the zero of the other would be NaN.
    return equation.primitive.bind(*(sizes.masked(x, a.aval.shape, dims, 0) for x, a, dims in pairs), **equation.params)


@_rule("sort")
def _sort(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    dim, params = equation.params["dimension"], equation.params
    keep = sizes.counting(arrays[0].shape, equation.invars[0].aval.shape, (dim,))
    if keep is None:
        return equation.primitive.bind(*arrays, **params)
    # Padding is sorted behind all valid elements, whatever they are.
    keys = {**params, "num_keys": params["num_keys"] + 1}
    return equation.primitive.bind(~keep, *arrays, **keys)[1:]


@_rule("top_k")
def _largest(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> jax.Array:
    (array,), shape = arrays, equation.invars[0].aval.shape
    axis = equation.params.get("axis", array.ndim - 1)  # older versions of JAX know the last alone
    array = sizes.masked(array, shape, (axis % array.ndim,), _least(array.dtype))
    return equation.primitive.bind(array, **equation.params)


@_rule("concatenate")
def _concatenate(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> jax.Array:
    dim, shapes = equation.params["dimension"], [atom.aval.shape for atom in equation.invars]
    if all(isinstance(shape[dim], int) for shape in shapes[:-1]):
        return lax.concatenate(arrays, dim)
    room = sizes.rooms_of(equation.outvars[0].aval.shape)
    wide = [*room]
    wide[dim] += max(array.shape[dim] for array in arrays)  # so that no write is moved to fit
    found, start = jnp.zeros(wide, arrays[0].dtype), jnp.zeros((), np.int32)
    for array, shape in zip(arrays, shapes, strict=True):
        found = lax.dynamic_update_slice_in_dim(found, array, start, dim)
        start = start + jnp.asarray(sizes.count(shape[dim]), np.int32)
    return lax.slice_in_dim(found, 0, room[dim], axis=dim)


@_rule("slice")
def _slice(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> jax.Array:
    (array,), params = arrays, equation.params
    strides = params["strides"] or (1,) * array.ndim
    for dim, (start, step, size) in enumerate(
        zip(params["start_indices"], strides, equation.outvars[0].aval.shape, strict=True)
    ):
        room = sizes.room(size)
        if isinstance(start, int):
            array = lax.slice_in_dim(array, start, min(start + room * step, array.shape[dim]), step, dim)
        elif step == 1:
            array = _shifted(array, sizes.count(start), room, dim)
        else:
            raise NotImplementedError(f"a slice with a step of {step} begins at {start}, which changes")
    return array


def _shifted(array: Any, start: Any, room: int, dim: int) -> jax.Array:
    """Return `room` elements along `dim` from `start` on; zeros behind the last."""
    behind = [(0, room if place == dim else 0) for place in range(array.ndim)]
    return lax.dynamic_slice_in_dim(jnp.pad(array, behind), jnp.asarray(start, np.int32), room, dim)


@_rule("split")
def _split(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    (array,), dim, parts = arrays, equation.params["axis"], equation.params["sizes"]
    if all(isinstance(size, int) for size in parts):
        return equation.primitive.bind(array, **equation.params)
    found, start = [], jnp.zeros((), np.int32)
    for size in parts:
        found.append(_shifted(array, start, sizes.room(size), dim))
        start = start + jnp.asarray(sizes.count(size), np.int32)
    return found


@_rule("dynamic_slice")
def _dynamic_slice(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> jax.Array:
    array, *starts = arrays
    shape = equation.invars[0].aval.shape
    for dim, (start, size) in enumerate(zip(starts, equation.params["slice_sizes"], strict=True)):
        if shape[dim] == size:
            continue
        last = jnp.asarray(sizes.count(shape[dim]) - sizes.count(size), start.dtype)
        array = _shifted(array, jnp.clip(start, 0, last), sizes.room(size), dim)
    return array


@_rule("dynamic_update_slice")
def _dynamic_update_slice(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> jax.Array:
    array, update, *starts = arrays
    shape, written = (atom.aval.shape for atom in equation.invars[:2])
    for dim, (whole, size) in enumerate(zip(shape, written, strict=True)):
        if not isinstance(size, int) and size != whole:
            raise NotImplementedError(f"a part of size {size} is written, which changes")
        if not isinstance(whole, int):
            last = jnp.asarray(sizes.count(whole) - sizes.count(size), starts[dim].dtype)
            starts[dim] = jnp.clip(starts[dim], 0, last)
    return lax.dynamic_update_slice(array, update, starts)


@_rule("gather")
def _gather(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> jax.Array:
    array, index = arrays
    shape = equation.invars[0].aval.shape
    params = {**equation.params, "slice_sizes": sizes.rooms_of(equation.params["slice_sizes"])}
    moved = params["dimension_numbers"].start_index_map
    if any(not isinstance(shape[dim], int) and params["slice_sizes"][dim] != 1 for dim in moved):
        # A window that changes is not moved to fit, as one that reaches beyond the room would be.
        extra = [(0, params["slice_sizes"][dim] if dim in moved else 0) for dim in range(array.ndim)]
        array = jnp.pad(array, extra)
    return equation.primitive.bind(array, index, **params)


@_rule("scatter-add", "scatter_add")
def _scatter_add(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[object]) -> jax.Array:
    array, index, update = arrays
    shape = equation.invars[2].aval.shape
    update = sizes.masked(update, shape, range(len(shape)), 0)
    return equation.primitive.bind(array, index, update, **equation.params)


@_rule("scatter")
def _scatter(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> jax.Array:
    array, index, update = arrays
    shape, numbers = equation.invars[1].aval.shape, equation.params["dimension_numbers"]
    dims = numbers.scatter_dims_to_operand_dims
    keep = sizes.counting(index.shape, shape, range(len(shape) - 1))
    if keep is None:
        return equation.primitive.bind(array, index, update, **equation.params)
    if not set(dims).issubset(numbers.inserted_window_dims):
        raise NotImplementedError("whole windows that are written at as many places as a size that changes")
    # Elements that are not valid go to an extra position behind the last.
    wide = jnp.pad(array, [(0, int(dim in dims)) for dim in range(array.ndim)])
    behind = np.asarray([array.shape[dim] for dim in dims], index.dtype)
    found = equation.primitive.bind(wide, jnp.where(keep, index, behind), update, **equation.params)
    return lax.slice(found, (0,) * array.ndim, array.shape)


@_rule("pad")
def _pad(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> jax.Array:
    (array, fill), shape, config = arrays, equation.invars[0].aval.shape, equation.params["padding_config"]
    array = sizes.masked(array, shape, range(len(shape)), fill)
    room = sizes.rooms_of(equation.outvars[0].aval.shape)
    exact: list[Any] = []
    for dim, (low, high, inner) in enumerate(config):
        if not isinstance(low, int | np.integer) or not (isinstance(high, int | np.integer) or inner == 0):
            raise NotImplementedError(f"padding by {config}, which changes, of a size that changes")
        fixed = isinstance(high, int | np.integer)
        exact.append((low, high if fixed else room[dim] - low - array.shape[dim], inner))
    return lax.pad(array, fill, exact)


@_rule("rev")
def _reverse(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> jax.Array:
    (array,), shape = arrays, equation.invars[0].aval.shape
    for dim in equation.params["dimensions"]:
        array = lax.rev(array, (dim,))
        if not isinstance(shape[dim], int):
            array = jnp.roll(array, jnp.asarray(sizes.count(shape[dim]), np.int32) - array.shape[dim], dim)
    return array


@_rule("reshape")
def _reshape(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> jax.Array:
    (array,), old, new = arrays, equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    room = sizes.rooms_of(new)
    if _keeps_places(old, new):
        return lax.reshape(array, room)
    # Element by element: the place in the result, in the memory of both, and in the operand.
    place = jnp.zeros(room, np.int32)
    for dim, size in enumerate(new):
        here = lax.broadcasted_iota(np.int32, room, dim)
        place = place * jnp.asarray(sizes.count(size), np.int32) + here
    source = jnp.zeros(room, np.int32)
    step = 1
    for dim in reversed(range(len(old))):
        count = jnp.asarray(sizes.count(old[dim]), np.int32)
        source = source + (place % count) * step
        place = place // count
        step *= array.shape[dim]
    return jnp.take(array.reshape(-1), source, mode="clip")


def _keeps_places(old: Sequence[object], new: Sequence[object]) -> bool:
    """Return whether valid elements keep their positions: no size that changes is inside of another dimension."""
    for ours, theirs in _factors(old, new):
        if ours != theirs and any(not isinstance(size, int) for size in (*ours[1:], *theirs[1:])):
            return False
    return True


def _factors(old: Sequence[Any], new: Sequence[Any]) -> list[tuple[list[object], list[object]]]:
    """Return the fewest neighbouring dimensions that become others together: without those of size 1."""
    rest = [[size for size in shape if not (isinstance(size, int) and size == 1)] for shape in (old, new)]
    found: list[tuple[list[Any], list[Any]]] = []
    while all(rest):
        group = rest[0].pop(0), rest[1].pop(0)
        ours, theirs = [group[0]], [group[1]]
        while not (done := prod(ours) == prod(theirs)) and any(rest):
            # The shorter one grows; which that is may not be known of sizes that change, and then both end together.
            behind = 0 if rest[0] and (not rest[1] or len(ours) <= len(theirs)) else 1
            (ours, theirs)[behind].append(rest[behind].pop(0))
        found.append((ours, theirs))
        if not done:
            break
    if any(rest):
        found.append((rest[0], rest[1]))
    return found


@_rule("reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window")
def _windows(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[jax.Array]) -> jax.Array:
    kind = equation.primitive.name.removeprefix("reduce_")
    if kind not in _NEUTRAL:
        raise NotImplementedError("windows with a function of their own over a size that changes")
    shape = equation.invars[0].aval.shape
    array = sizes.masked(arrays[0], shape, range(len(shape)), _NEUTRAL[kind](arrays[0].dtype))
    return equation.primitive.bind(array, **equation.params)


@_rule("conv_general_dilated")
def _convolution(sizes: SymbolSizes, equation: TracedEquation, arrays: Sequence[object]) -> jax.Array:
    numbers, params = equation.params["dimension_numbers"], equation.params
    if any(not isinstance(n, int) for pair in params["padding"] for n in pair):
        raise NotImplementedError("a convolution whose padding changes; its gradient by weights is one")
    shapes = [atom.aval.shape for atom in equation.invars]
    lhs = sizes.masked(arrays[0], shapes[0], numbers.lhs_spec[1:], 0)
    rhs = sizes.masked(arrays[1], shapes[1], numbers.rhs_spec, 0)
    return equation.primitive.bind(lhs, rhs, **params)
