"""Run JAX functions of small arrays without compiling them: NumPy moves elements, and XLA computes.

XLA needs some forty milliseconds for the smallest program. Here a function becomes its jaxpr, and NumPy runs equations
that only move elements: slices, transposes, gathers. XLA runs the others on operands of one of a few shapes:
elementwise operations on vectors of fixed length, reductions and sorts on rows. So a few programs serve all sizes.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.extend.core
import numpy as np
from jax.lax import GatherScatterMode

ELEMENTWISE = frozenset(
    "div rem floor ceil round pow integer_pow exp exp2 expm1 log log1p sin cos tan asin acos atan atan2 sinh cosh tanh"
    " asinh acosh atanh logistic sqrt rsqrt cbrt erf erfc erf_inv lgamma digamma shift_left shift_right_arithmetic"
    " shift_right_logical population_count clz nextafter conj bessel_i0e bessel_i1e igamma igammac"
    " regularized_incomplete_beta polygamma zeta reduce_precision sign abs eq_to lt_to le_to mul".split()
)
ALONG = {
    "cumsum": "axis", "cumprod": "axis", "cummax": "axis", "cummin": "axis", "cumlogsumexp": "axis",
    "sort": "dimension",
}  # fmt: skip
# XLA's reductions, with the value that fills a row without changing the result.
SUMS = {"reduce_sum": 0, "reduce_prod": 1}
ROWS = 8

Array = np.ndarray


def evaluate(jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Array]:
    """The results of an open jaxpr."""
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))
    for equation in jaxpr.eqns:
        operands = [
            np.asarray(v.val, v.aval.dtype) if isinstance(v, jax.extend.core.Literal) else values[v]
            for v in equation.invars
        ]
        results = _apply(equation, operands)
        values.update(zip(equation.outvars, results, strict=True))
    return [
        np.asarray(v.val, v.aval.dtype) if isinstance(v, jax.extend.core.Literal) else values[v] for v in jaxpr.outvars
    ]


def _closed(closed: Any, operands: Sequence[Any]) -> list[Array]:
    return evaluate(closed.jaxpr, closed.consts, operands)


def _apply(equation: Any, operands: list[Any]) -> Sequence[Any]:
    name, params = equation.primitive.name, equation.params
    operands = [o if isinstance(o, np.ndarray) or _is_key(o) else np.asarray(o) for o in operands]
    if name in ARITHMETIC and not (name in SETTLED_FOR_REAL and operands[0].dtype.kind == "c"):
        return [np.asarray(ARITHMETIC[name](*operands), equation.outvars[0].aval.dtype)]
    if name == "convert_element_type":
        return [_converted(equation, *operands)]
    if name in ELEMENTWISE:
        return [_elementwise(equation, operands)]
    if name in MOVES:
        return [MOVES[name](*operands, **params)]
    if name in NESTED:
        return NESTED[name](operands, **params)
    if name in SUMS and operands[0].size:
        return [_summed(equation, *operands)]
    if name in ALONG and operands[0].size:
        return _along(equation, operands)
    if name == "dot_general" and all(o.size for o in operands):
        return [_product(equation, *operands)]
    return _by_xla(equation, operands)


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def _by_xla(equation: Any, operands: list[Any]) -> Sequence[Any]:
    results = equation.primitive.bind(*map(jax.numpy.asarray, operands), **equation.params)
    results = results if equation.primitive.multiple_results else [results]
    return [r if _is_key(r) else np.asarray(r) for r in results]


_compiled: dict[Any, Callable[..., Any]] = {}


def _program(equation: Any, operands: list[Array], changed: tuple[tuple[str, Any], ...] = ()) -> Callable[..., Any]:
    """The primitive for operands of these shapes, compiled."""
    params = {**equation.params, **dict(changed)}
    shapes = tuple((o.shape, o.dtype) for o in operands)
    key = (equation.primitive, shapes, tuple(sorted((k, _hashable(v)) for k, v in params.items())))
    program = _compiled.get(key)
    if program is None:
        program = _compiled[key] = jax.jit(lambda *a: equation.primitive.bind(*a, **params)).lower(*operands).compile()
    return program


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return repr(value) if isinstance(value, list) else _Sortable(value)


class _Sortable:
    """A value in a key, equal as the value is."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Sortable) and self.value == other.value

    def __lt__(self, other: object) -> bool:
        return False


def _elementwise(equation: Any, operands: list[Array]) -> Array:
    shape, count = equation.outvars[0].aval.shape, equation.outvars[0].aval.size
    length = 32 if count <= 32 else 1 << (count - 1).bit_length()
    filled = []
    for operand in operands:
        vector = np.ones(length, operand.dtype)
        vector[:count] = operand.ravel() if operand.size == count else np.broadcast_to(operand, shape).ravel()
        filled.append(vector)
    changed = (("sharding", None),) if "sharding" in equation.params else ()
    return np.asarray(_program(equation, filled, changed)(*filled))[:count].reshape(shape)


def _converted(equation: Any, operand: Array) -> Array:
    dtype = np.dtype(equation.params["new_dtype"])
    if operand.dtype.kind in "biu" or dtype.kind not in "iu":
        return operand.astype(dtype)
    # XLA defines the conversion of a float that no integer equals.
    limits = np.iinfo(dtype)
    fits = (operand > limits.min / 2) & (operand < limits.max / 2) & (dtype.kind == "i" or operand.min(initial=0) >= 0)
    return operand.astype(dtype) if bool(np.all(fits)) else _elementwise(equation, [operand])


def _rows(array: Array, axes: Sequence[int], filling: int = 1, width: int = 0) -> Array:
    """Return the array as rows along `axes`, with additional filled rows."""
    kept = [d for d in range(array.ndim) if d not in axes]
    flat = array.transpose([*kept, *axes]).reshape(-1, int(np.prod([array.shape[d] for d in axes])))
    filled = np.full((_step(len(flat), ROWS), max(width, flat.shape[1])), filling, array.dtype)
    filled[: len(flat), : flat.shape[1]] = flat
    return filled


def _step(count: int, least: int) -> int:
    while least < count:
        least *= 4
    return least


def _summed(equation: Any, operand: Array) -> Array:
    axes, out = equation.params["axes"], equation.outvars[0].aval
    width = _step(int(np.prod([operand.shape[d] for d in axes])), 4)
    filled = _rows(operand, axes, SUMS[equation.primitive.name], width)
    changed: tuple[tuple[str, Any], ...] = (("axes", (1,)),)
    if "out_sharding" in equation.params:
        changed += (("out_sharding", None),)
    return np.asarray(_program(equation, [filled], changed)(filled))[: out.size].reshape(out.shape)


def _product(equation: Any, left: Array, right: Array) -> Array:
    (left_sum, right_sum), (left_batch, right_batch) = equation.params["dimension_numbers"]
    out = equation.outvars[0].aval
    batch = [left.shape[d] for d in left_batch]
    parts = []
    for array, summed, batched in ((left, left_sum, left_batch), (right, right_sum, right_batch)):
        free = [d for d in range(array.ndim) if d not in summed and d not in batched]
        sizes = [int(np.prod([array.shape[d] for d in dims])) for dims in (batched, free, summed)]
        parts.append((array.transpose([*batched, *free, *summed]).reshape(sizes), [array.shape[d] for d in free]))
    filled = []
    for array, _ in parts:
        whole = np.zeros([_step(n, 4) for n in array.shape], array.dtype)
        whole[tuple(slice(n) for n in array.shape)] = array
        filled.append(whole)
    changed = (("dimension_numbers", (((2,), (2,)), ((0,), (0,)))), ("out_sharding", None))
    product = np.asarray(_program(equation, filled, changed)(*filled))
    (a, free_left), (b, free_right) = parts
    return (
        product[: a.shape[0], : a.shape[1], : b.shape[1]].reshape([*batch, *free_left, *free_right]).astype(out.dtype)
    )


def _along(equation: Any, operands: list[Array]) -> list[Array]:
    word = ALONG[equation.primitive.name]
    axis, shape = equation.params[word], operands[0].shape
    filled = [_rows(o, (axis,)) for o in operands]
    results = _program(equation, filled, ((word, 1),))(*filled)
    results = results if equation.primitive.multiple_results else [results]
    moved = [n for d, n in enumerate(shape) if d != axis]
    count = int(np.prod(moved))
    return [np.moveaxis(np.asarray(r)[:count].reshape([*moved, shape[axis]]), -1, axis) for r in results]


def _pad(operand: Array, filling: Array, padding_config: Any) -> Array:
    for axis, (low, high, inner) in enumerate(padding_config):
        n = operand.shape[axis]
        spread = n + max(n - 1, 0) * inner
        shape = list(operand.shape)
        shape[axis] = spread + max(low, 0) + max(high, 0)
        padded = np.full(shape, filling, operand.dtype)
        start = max(low, 0)
        padded[_at(axis, slice(start, start + spread, inner + 1))] = operand
        operand = padded[_at(axis, slice(max(-low, 0), shape[axis] - max(-high, 0)))]
    return operand


def _at(axis: int, part: slice) -> tuple[slice, ...]:
    return (*[slice(None)] * axis, part)


def _starts(starts: Sequence[Any], shape: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    begins = [min(max(int(s), 0), n - m) for s, n, m in zip(starts, shape, sizes, strict=True)]
    return tuple(slice(b, b + m) for b, m in zip(begins, sizes, strict=True))


def _updated(operand: Array, update: Array, *starts: Array) -> Array:
    result = operand.copy()
    result[_starts(starts, operand.shape, update.shape)] = update
    return result


def _bits(operand: Array, new_dtype: Any) -> Array:
    new = np.dtype(new_dtype)
    operand = np.ascontiguousarray(operand)
    if new.itemsize == operand.dtype.itemsize:
        return operand.view(new)
    if new.itemsize < operand.dtype.itemsize:
        return operand[..., None].view(new)
    return operand.view(new)[..., 0]


def _broadcast(operand: Array, *, shape: Any, broadcast_dimensions: Any, **_: Any) -> Array:
    sizes = [1] * len(shape)
    for dim, n in zip(broadcast_dimensions, operand.shape, strict=True):
        sizes[dim] = n
    return np.broadcast_to(operand.reshape(sizes), shape)


def _iota(*, dtype: Any, shape: Any, dimension: int, **_: Any) -> Array:
    sizes = [n if d == dimension else 1 for d, n in enumerate(shape)]
    return np.broadcast_to(np.arange(shape[dimension]).astype(dtype).reshape(sizes), shape)


def _select(which: Array, *cases: Array) -> Array:
    if which.dtype == np.bool_:
        return np.where(which, cases[1], cases[0])
    return np.choose(which, cases)


def _complex(real: Array, imaginary: Array) -> Array:
    made = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
    made.real, made.imag = real, imaginary
    return made


def _argument(choose: Callable[..., Any]) -> Callable[..., Array]:
    def found(operand: Array, *, axes: Sequence[int], index_dtype: Any) -> Array:
        return np.asarray(choose(operand, axes[0]), index_dtype)

    return found


def _extreme(function: Any) -> Callable[..., Array]:
    def found(operand: Array, *, axes: Sequence[int], **_: Any) -> Array:
        if not operand.size:
            kind = operand.dtype
            lowest = {"f": -np.inf, "V": -np.inf, "b": False}.get(kind.kind)
            worst = lowest if lowest is not None else np.iinfo(kind).min
            if function is np.minimum:
                worst = -worst if kind.kind in "fV" else True if kind.kind == "b" else np.iinfo(kind).max
            return np.full([n for d, n in enumerate(operand.shape) if d not in axes], worst, kind)
        return np.asarray(function.reduce(operand, axis=tuple(axes)))

    return found


def _reduced(function: Any) -> Callable[..., Array]:
    return lambda operand, *, axes, **_: np.asarray(function.reduce(operand, axis=tuple(axes)))


def _gather(
    operand: Array, indices: Array, *, dimension_numbers: Any, slice_sizes: Sequence[int], mode: Any, fill_value: Any,
    **_: Any,
) -> Array:  # fmt: skip
    numbers = dimension_numbers
    batch = indices.shape[:-1]
    windows = [
        n for d, n in enumerate(slice_sizes)
        if d not in numbers.collapsed_slice_dims and d not in numbers.operand_batching_dims
    ]  # fmt: skip
    found = np.empty((*batch, *windows), operand.dtype)
    for place in np.ndindex(*batch):
        starts, fits = _window(place, operand.shape, indices, slice_sizes, numbers.start_index_map,
                               numbers.operand_batching_dims, numbers.start_indices_batching_dims)  # fmt: skip
        if fits or mode is not GatherScatterMode.FILL_OR_DROP:
            found[place] = operand[_starts(starts, operand.shape, slice_sizes)].reshape(windows)
        else:
            found[place] = _filling(operand.dtype) if fill_value is None else fill_value
    order = iter(range(len(batch)))
    window = iter(range(len(batch), found.ndim))
    return found.transpose([next(window if d in numbers.offset_dims else order) for d in range(found.ndim)])


def _filling(dtype: np.dtype) -> Any:
    # As `jax.lax.gather` has it.
    if dtype.kind == "i":
        return np.iinfo(dtype).min
    if dtype.kind == "u":
        return np.iinfo(dtype).max
    return True if dtype.kind == "b" else np.nan


def _window(
    place: tuple[int, ...], shape: Sequence[int], indices: Array, sizes: Sequence[int], index_map: Sequence[int],
    batching: Sequence[int], index_batching: Sequence[int],
) -> tuple[list[int], bool]:  # fmt: skip
    starts = [0] * len(shape)
    for dim, index in zip(index_map, indices[place], strict=True):
        starts[dim] = int(index)
    for dim, along in zip(batching, index_batching, strict=True):
        starts[dim] = place[along]
    return starts, all(0 <= s <= n - m for s, n, m in zip(starts, shape, sizes, strict=True))


def _scatter(combine: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def scattered(
        operand: Array, indices: Array, updates: Array, *, dimension_numbers: Any, mode: Any, **_: Any
    ) -> Array:
        numbers = dimension_numbers
        result = operand.copy()
        inserted = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        over_batch = [d for d in range(updates.ndim) if d not in numbers.update_window_dims]
        updates = updates.transpose([*over_batch, *numbers.update_window_dims])
        window = iter(updates.shape[len(over_batch) :])
        sizes = [1 if d in inserted else next(window) for d in range(operand.ndim)]
        for place in np.ndindex(*indices.shape[:-1]):
            starts, fits = _window(place, operand.shape, indices, sizes, numbers.scatter_dims_to_operand_dims,
                                   numbers.operand_batching_dims, numbers.scatter_indices_batching_dims)  # fmt: skip
            if fits or mode is GatherScatterMode.CLIP:
                part = _starts(starts, operand.shape, sizes)
                result[part] = combine(result[part], updates[place].reshape(sizes))
        return result

    return scattered


# Settled by the standards of floats and of two's complement.
ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "abs": np.abs, "max": np.maximum,
    "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "is_finite": np.isfinite, "real": np.real, "imag": np.imag, "complex": _complex,
    "square": np.square,
}  # fmt: skip
# … but not for complex numbers.
SETTLED_FOR_REAL = frozenset(("mul", "abs", "square"))

MOVES: dict[str, Callable[..., Array]] = {
    "reshape": lambda x, *, new_sizes, **_: x.reshape(new_sizes),
    "transpose": lambda x, *, permutation: x.transpose(permutation),
    "broadcast_in_dim": _broadcast,
    "squeeze": lambda x, *, dimensions: np.squeeze(x, tuple(dimensions)),
    "expand_dims": lambda x, *, dimensions: np.expand_dims(x, tuple(dimensions)),
    "slice": lambda x, *, start_indices, limit_indices, strides: x[
        tuple(map(slice, start_indices, limit_indices, strides or [1] * x.ndim))
    ],
    "dynamic_slice": lambda x, *starts, slice_sizes: x[_starts(starts, x.shape, slice_sizes)],
    "dynamic_update_slice": _updated,
    "concatenate": lambda *parts, dimension: np.concatenate(parts, dimension),
    "stack": lambda *parts, axis: np.stack(parts, axis),
    "rev": lambda x, *, dimensions: np.flip(x, dimensions),
    "pad": _pad,
    "select_n": _select,
    "iota": _iota,
    "copy": lambda x: x,
    "copy_p": lambda x: x,
    "stop_gradient": lambda x: x,
    "bitcast_convert_type": _bits,
    "gather": _gather,
    "scatter": _scatter(lambda old, new: new),
    "scatter-add": _scatter(np.add),
    "scatter-mul": _scatter(np.multiply),
    "scatter_mul": _scatter(np.multiply),
    "scatter-min": _scatter(np.minimum),
    "scatter-max": _scatter(np.maximum),
    "argmax": _argument(np.argmax),
    "argmin": _argument(np.argmin),
    "reduce_max": _extreme(np.maximum),
    "reduce_min": _extreme(np.minimum),
    "reduce_and": _reduced(np.bitwise_and),
    "reduce_or": _reduced(np.bitwise_or),
    "reduce_xor": _reduced(np.bitwise_xor),
}


def _call(operands: list[Any], *, jaxpr: Any, **_: Any) -> list[Array]:
    return _closed(jaxpr, operands)


def _custom_call(operands: list[Any], *, call_jaxpr: Any, **_: Any) -> list[Array]:
    return _closed(call_jaxpr, operands)


def _while(
    operands: list[Any], *, cond_jaxpr: Any, body_jaxpr: Any, cond_nconsts: int, body_nconsts: int, **_: Any
) -> list[Array]:
    of_condition, rest = operands[:cond_nconsts], operands[cond_nconsts:]
    of_body, carry = rest[:body_nconsts], rest[body_nconsts:]
    while bool(_closed(cond_jaxpr, [*of_condition, *carry])[0]):
        carry = _closed(body_jaxpr, [*of_body, *carry])
    return carry


def _cond(operands: list[Any], *, branches: Any, **_: Any) -> list[Array]:
    return _closed(branches[min(max(int(operands[0]), 0), len(branches) - 1)], operands[1:])


def _scan(operands: list[Any], *, jaxpr: Any, length: int, reverse: bool, **params: Any) -> list[Array]:
    if "ft_in" in params:  # from JAX 0.11 on
        num_consts, num_carry = (len(each) for each in params["ft_in"].unpack()[:2])
    else:
        num_consts, num_carry = params["num_consts"], params["num_carry"]
    constants, carry = operands[:num_consts], operands[num_consts : num_consts + num_carry]
    rows = operands[num_consts + num_carry :]
    kept = jaxpr.out_avals[num_carry:]
    stacked = [np.empty((length, *aval.shape), aval.dtype) for aval in kept]
    for index in reversed(range(length)) if reverse else range(length):
        results = _closed(jaxpr, [*constants, *carry, *[row[index] for row in rows]])
        carry = results[:num_carry]
        for stack, result in zip(stacked, results[num_carry:], strict=True):
            stack[index] = result
    return [*carry, *stacked]


NESTED: dict[str, Callable[..., list[Array]]] = {
    "jit": _call, "pjit": _call, "custom_jvp_call": _custom_call, "custom_vjp_call": _custom_call, "while": _while,
    "cond": _cond, "scan": _scan,
}  # fmt: skip


@cache
def _jaxpr(function: Callable[..., Any], shapes: tuple[Any, ...]) -> Any:
    return jax.make_jaxpr(function)(*[jax.ShapeDtypeStruct(*shape) for shape in shapes])


def interpret(function: Callable[..., Any], arguments: Sequence[Any]) -> list[Array]:
    """Return the results of `function` of arrays as a list. The jaxpr is cached by the identity of the function."""
    arrays = [np.asarray(a) for a in arguments]
    closed = _jaxpr(function, tuple((a.shape, a.dtype) for a in arrays))
    with np.errstate(all="ignore"):
        return _closed(closed, arrays)
