"""Record a JAX function as one operation: traced once for each kind of operands, differentiated by JAX."""

import dataclasses
import functools
import hashlib
import itertools
import operator
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend as jex
import numpy as np
import torch

from .. import dtypes
from ..atomic import uncollected
from ..caching.bounded import put_last
from ..caching.interning import note_new, table_of_plans
from ..compat.names import jax_callbacks
from ..compat.names.torch import is_traced
from ..compile import settings_in_force
from ..compiled import eager
from ..dispatch.recording_kernel import append
from ..ir.call_plan import Operand, Plan, kinds_of
from ..ir.side_effects import CALLBACK
from ..ir.tape import Value
from ..ir.value_spec import Spec, contiguous_stride, spec_of
from ..lowering.machinery import replica_axis
from ..lowering.machinery.registry import Promotion, Rule, add_rule, lowers, rule_of
from ..lowering.machinery.xla_op_schemas import LIBRARY, define
from ..runtime import buffers
from ..step.sync import sync_device
from ..tensor.storage import snapshot, wrap
from .jax_arrays import from_jax
from .pallas import Interpreted

# Bytes of constants that may be part of a function's name; a function with more is not found again on disk.
_MOST_CONSTANTS = 1 << 24

_serial = itertools.count()
known: dict[Hashable, "Traced"] = {}
table_of_plans(known, operator.attrgetter("plan"))

# Functions that PyTorch's graphs call, which know them by name and cannot hold them. The last used ones are kept.
_in_graphs: "OrderedDict[Hashable, Traced]" = OrderedDict()
_MOST_IN_GRAPHS = 4096


@dataclass(frozen=True)
class Flat:
    """A function of arrays alone: the positions of the arrays among the arguments, and the other arguments."""

    function: Callable[..., object]
    tree: jax.tree_util.PyTreeDef
    static: tuple[object, ...]  # by leaf; `_ARRAY` for an array
    name: str
    kinds: tuple[Hashable, ...] = ()  # types of those: 1, 1.0 and True are equal, but different

    def __call__(self, *arrays: object) -> object:
        rest = iter(arrays)
        leaves = [next(rest) if leaf is _ARRAY else leaf for leaf in self.static]
        args, kwargs = jax.tree.unflatten(self.tree, leaves)
        return self.function(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradients of a function by some of its arrays, as a function of its arrays and the outputs' gradients."""

    function: Callable[..., object]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    count: int
    name: str

    def __call__(self, *arrays: object) -> list[jax.Array]:
        operands, given = arrays[: self.count], arrays[self.count :]

        def of_inputs(*chosen: object) -> list[jax.Array]:
            filled = list(operands)
            for place, array in zip(self.inputs, chosen, strict=True):
                filled[place] = array
            # Its effects were done when it was called.
            closed = jax_callbacks.without_callbacks(jax.make_jaxpr(self.function)(*filled))
            leaves = jex.core.jaxpr_as_fun(closed)(*filled)
            return [leaves[place] for place in self.outputs]

        _, pull = jax.vjp(of_inputs, *(operands[place] for place in self.inputs))
        return list(pull(list(given)))


@dataclass(frozen=True, slots=True)
class Traced:
    """A function for one kind of operands."""

    plan: Plan
    tree: jax.tree_util.PyTreeDef
    rule: Rule
    flat: "Flat | Gradient"
    brings_gradient: bool  # a gradient of its own, which its text does not show


_ARRAY = object()

# Marks a tensor, with its number, among the constants that Dynamo passes.
PLACE = "\0tensor "


def call(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: dict[str, object],
    name: str | None = None,
) -> Any:
    """Record `function(*args, **kwargs)`; tensors and arrays among the arguments reach it as arrays."""
    leaves, tree = jax.tree.flatten((tuple(args), kwargs))
    leaves = [from_jax(leaf) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
    leaves = [from_jax(buffers.of_array(leaf)) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    static = tuple(_ARRAY if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    return _call(_flat(function, tree, static, name), tensors)


def _flat(function: Callable[..., object], tree: object, static: tuple[object, ...], name: str | None) -> Flat:
    try:
        hash(static)
    except TypeError as error:
        raise TypeError(f"a JAX function takes tensors, arrays and hashable values: {error}") from error
    named = str(name or getattr(function, "__name__", type(function).__name__))
    return Flat(function, tree, static, named, kinds_of(static))


def described(
    function: Callable[..., object],
    nested: object,
    kinds: Sequence[tuple[tuple[int, ...], torch.dtype, str]],
    name: str | None,
) -> tuple[Hashable, list[int], object] | None:
    """Describe how a graph calls `function(*args, **kwargs)`: its name, its tensors, and the nesting of its results.

    `nested` is `(args, kwargs)`, in which `PLACE` and a number mean the tensor of that size, dtype and device in
    `kinds`. Return `None` if no graph can call it.
    """
    leaves, tree = jax.tree.flatten(nested)
    static = tuple(_ARRAY if str(leaf).startswith(PLACE) else leaf for leaf in leaves)
    order = [int(leaf.removeprefix(PLACE)) for leaf in leaves if str(leaf).startswith(PLACE)]
    if not order or any(device != "xla" for *_, device in kinds):
        return None  # it is called between two graphs, and says there what is wrong
    try:
        traced = _in_graph(_flat(function, tree, static, name), [kinds[place][:2] for place in order])
        return traced.plan.op, order, _nesting(jax.tree.unflatten(traced.tree, range(len(traced.plan.outputs))))
    except Exception:  # whatever tracing raises: called between two graphs, the function raises it again
        return None


def _nesting(results: Any) -> object:
    """Return a structure of numbers as numbers and tuples, each beginning with the kind of structure."""
    if results is None or isinstance(results, int):
        return results
    if type(results) is dict:
        return "dict", *((name, _nesting(each)) for name, each in results.items())
    if type(results) not in (list, tuple):
        raise TypeError(f"graphs nest results in tuples, lists and dicts; got a {type(results).__name__}")
    return type(results).__name__, *map(_nesting, results)


def traced() -> int:
    """Return how many functions are traced and kept, each for one kind of operands."""
    return len(known)


@uncollected
def hlo_text(function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """Return the HLO text of `function` for these arguments, in which a tensor means an array of its size and dtype."""

    def described(leaf: torch.Tensor) -> jax.ShapeDtypeStruct:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return jax.ShapeDtypeStruct(tuple(leaf.shape), dtypes.to_jax(dtypes.on_device(leaf.dtype)))

    leaves, tree = jax.tree.flatten((tuple(args), kwargs))
    static = tuple(_ARRAY if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    flat = Flat(function, tree, static, str(getattr(function, "__name__", type(function).__name__)))
    arrays = [described(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
    with jax.enable_x64(any(_is_wide(leaf.dtype) for leaf in leaves if isinstance(leaf, torch.Tensor))):
        return str(jax.jit(flat, keep_unused=True).lower(*arrays).as_text("hlo"))


def _call(flat: Flat | Gradient, tensors: Sequence[torch.Tensor]) -> Any:
    elsewhere = next((tensor for tensor in tensors if tensor.device.type != "xla"), None)
    if elsewhere is not None:
        raise RuntimeError(
            f"{flat.name} is a JAX function and takes tensors on the xla device; one of its arguments is on "
            f"{elsewhere.device}. Move it with `.to('xla')`."
        )
    if is_traced():  # a body of a scan, loop or branch, or a graph of `torch.compile`
        traced = _in_graph(flat, [(tuple(each.shape), each.dtype) for each in tensors])
        return jax.tree.unflatten(traced.tree, torch.ops.xla.jax_function(traced.plan.op, list(tensors)))
    results: tuple[torch.Tensor, ...] = _Function.apply(flat, *tensors)
    traced = _trace(flat, [snapshot(tensor) for tensor in tensors])
    return jax.tree.unflatten(traced.tree, results)


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flat: Flat | Gradient, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [snapshot(tensor) for tensor in tensors]
        traced = _trace(flat, values)
        results = _record(traced, values)
        ctx.flat = flat
        ctx.differentiable = tuple(i for i, t in enumerate(results) if t.is_floating_point() or t.is_complex())
        ctx.mark_non_differentiable(*(t for t in results if not (t.is_floating_point() or t.is_complex())))
        ctx.save_for_backward(*tensors)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, *_gradients(ctx.flat, ctx.saved_tensors, ctx.needs_input_grad[1:], grads, ctx.differentiable)


def _gradients(
    flat: Flat | Gradient,
    tensors: Sequence[torch.Tensor],
    needed: Sequence[bool],
    grads: Sequence[torch.Tensor],
    differentiable: tuple[int, ...],
) -> list[torch.Tensor | None]:
    """Return the gradients by those tensors that need one."""
    inputs = tuple(i for i, need in enumerate(needed) if need)
    gradient = Gradient(flat, inputs, differentiable, len(tensors), f"{flat.name}_backward")
    found = _call(gradient, [*tensors, *(_conjugate(grads[i]) for i in differentiable)])
    results: list[torch.Tensor | None] = [None] * len(tensors)
    for place, grad in zip(inputs, found, strict=True):
        results[place] = _conjugate(grad)
    return results


def _conjugate(grad: torch.Tensor) -> torch.Tensor:
    # JAX's gradients by complex numbers are the conjugates of PyTorch's.
    return grad.conj().resolve_conj() if grad.is_complex() else grad


def _record(traced: Traced, values: list[Value]) -> list[torch.Tensor]:
    if not values:
        raise ValueError("a JAX function needs at least one tensor among its arguments, which determines the device")
    made = append(traced.plan, ([], [*values], []), values[0].device)
    results = [wrap(value) for value in made]
    if traced.plan.effect is not None and eager.is_on():
        sync_device(values[0].device)
    return results


def _trace(flat: Flat | Gradient, values: Sequence[Value]) -> Traced:
    return _trace_for(flat, tuple(value.spec for value in values))


def _trace_for(flat: Flat | Gradient, specs: tuple[Spec, ...]) -> Traced:
    wide = bool(jax.config.values["jax_enable_x64"]) or any(_is_wide(spec.dtype) for spec in specs)
    key = (flat, specs, wide, settings_in_force.now())
    traced = known.get(key)
    if traced is None:
        traced = known[key] = _trace_anew(flat, specs, wide)
        note_new()
    return traced


def _is_wide(dtype: torch.dtype) -> bool:
    return dtype in (torch.int64, torch.uint64, torch.float64, torch.complex128)


@uncollected
def _trace_anew(flat: Flat | Gradient, specs: tuple[Spec, ...], wide: bool) -> Traced:
    # With 64-bit operands JAX must not narrow them; without, the function runs as it does by itself.
    described = [jax.ShapeDtypeStruct(spec.size, dtypes.to_jax(dtypes.on_device(spec.dtype))) for spec in specs]
    called: Any = flat
    while isinstance(called, Flat | Gradient):
        called = called.function
    with jax.enable_x64(wide), called.around() if isinstance(called, Interpreted) else nullcontext():
        closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*described)
    leaves, tree = jax.tree.flatten(shapes)
    outputs = tuple(spec_of(leaf.shape, contiguous_stride(leaf.shape), dtypes.to_torch(leaf.dtype)) for leaf in leaves)
    op = _name(flat.name, closed)
    effect = CALLBACK if jax_callbacks.calls_back(closed) else None
    rule = rule_of(op)
    if rule is None:
        run = _run_of(closed) if effect is not None else jex.core.jaxpr_as_fun(closed)
        rule = add_rule(
            Rule(
                op,
                functools.partial(_lower, run, len(leaves) == 1),
                Promotion.NONE,
                False,
                calls_python=jax_callbacks.calls_python(closed),
            )
        )
    operands = tuple(Operand(index) for index in range(len(specs)))
    structure = (-1,) * len(outputs) if len(outputs) != 1 else (-2, -1)
    plan = Plan(rule.op, (operands, {}), specs, (), outputs, structure, effect=effect)
    return Traced(plan, tree, rule, flat, _brings_gradient(closed))


def _brings_gradient(part: object) -> bool:
    part = jax_callbacks.opened(part)
    if isinstance(part, (tuple, list)):
        return any(map(_brings_gradient, part))
    return isinstance(part, jex.core.Jaxpr) and any(
        each.primitive.name.startswith("custom_") or any(map(_brings_gradient, each.params.values()))
        for each in part.eqns
    )


def _in_graph(flat: Flat | Gradient, kinds: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> Traced:
    """Return `flat` for tensors of these sizes and dtypes, from now on known to graphs by the name of its operation."""
    if any(not isinstance(each, int) for size, _ in kinds for each in size):
        raise NotImplementedError(
            f"{flat.name} is a JAX function, which is traced for sizes that are known; in this graph some may change. "
            f"Compile with dynamic=False."
        )
    specs = tuple(spec_of(size, contiguous_stride(size), dtype) for size, dtype in kinds)
    traced = _trace_for(flat, specs)
    if traced.plan.effect is not None:
        raise NotImplementedError(
            f"{flat.name} is a JAX function that calls Python on the host, which the body of a scan, loop or branch, "
            f"or a graph of torch.compile, cannot promise to do. Leave the callback out, or write the whole loop in "
            f"JAX (jax.lax.scan inside of {flat.name})."
        )
    if traced.brings_gradient:
        traced = _named_by_gradient(traced, specs)
    return put_last(_in_graphs, traced.plan.op, _in_graphs.get(traced.plan.op, traced), _MOST_IN_GRAPHS)


def _named_by_gradient(traced: Traced, specs: tuple[Spec, ...]) -> Traced:
    """Return the function under a name that differs for functions with equal results and another gradient."""
    inputs, outputs = (
        tuple(place for place, spec in enumerate(each) if spec.dtype.is_floating_point or spec.dtype.is_complex)
        for each in (specs, traced.plan.outputs)
    )
    gradient = Gradient(traced.flat, inputs, outputs, len(specs), f"{traced.flat.name}_backward")
    try:
        of_gradient = str(_trace_for(gradient, (*specs, *(traced.plan.outputs[place] for place in outputs))).plan.op)
    except Exception as error:  # there is no gradient; asking for it raises this error
        of_gradient = type(error).__name__
    digest = hashlib.sha256(of_gradient.encode()).hexdigest()[:8]
    name = f"{traced.plan.op}_{digest}{' at 0x0' if ' at 0x' in of_gradient else ''}"
    rule = rule_of(name) or add_rule(dataclasses.replace(traced.rule, op=name))
    return dataclasses.replace(traced, plan=dataclasses.replace(traced.plan, op=name), rule=rule)


def _named(name: str) -> Traced:
    try:
        _in_graphs.move_to_end(name)
        return _in_graphs[name]
    except KeyError:
        raise RuntimeError(
            f"a graph calls the JAX function {name}, which left memory after {_MOST_IN_GRAPHS} others; trace the graph "
            "again"
        ) from None


def _without_values(name: str, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    found = _named(name).plan.outputs
    return [operands[0].new_empty(spec.size, dtype=spec.dtype) for spec in found]


JAX_FUNCTION = define("jax_function(str name, Tensor[] operands) -> Tensor[]", _without_values)


@lowers(JAX_FUNCTION)
def jax_function(name: str, operands: Sequence[object]) -> list[jax.Array]:
    """Return what the function of this name gives for arrays: how graphs call one."""
    found = _named(name).rule.lower(*operands)
    return list(found[1:] if found[0] is None else found)


def _keep(ctx: Any, inputs: tuple[str, Sequence[torch.Tensor]], output: Sequence[torch.Tensor]) -> None:
    ctx.name = inputs[0]
    ctx.differentiable = tuple(i for i, t in enumerate(output) if t.is_floating_point() or t.is_complex())
    ctx.save_for_backward(*inputs[1])


def _backward(ctx: Any, grads: Sequence[torch.Tensor]) -> tuple[None, list[torch.Tensor | None]]:
    flat = _named(ctx.name).flat
    return None, _gradients(flat, ctx.saved_tensors, ctx.needs_input_grad[1], grads, ctx.differentiable)


torch.library.register_autograd(JAX_FUNCTION.name(), _backward, setup_context=_keep, lib=LIBRARY)


def _run_of(closed: object) -> Callable[..., list[jax.Array]]:
    """Return what runs a traced function that makes callbacks: in order, where JAX can keep one."""
    ordered, plain = jex.core.jaxpr_as_fun(jax_callbacks.in_order(closed)), jex.core.jaxpr_as_fun(closed)

    def run(*arrays: object) -> list[jax.Array]:
        target = replica_axis.target_in_use()
        return (ordered if target is None or len(target.devices) == 1 else plain)(*arrays)

    return run


def _lower(run: Callable[..., list[jax.Array]], is_one: bool, *arrays: object) -> Sequence[jax.Array | None]:
    with jax.default_matmul_precision(None):  # its text has JAX's own; a kernel inside of it has the kernel's
        results = run(*arrays)
    # Behind `None`, so that one result too is a result among several.
    return (None, *results) if is_one else results


def _name(name: str, closed: jex.core.ClosedJaxpr) -> str:
    """Return a name that says what the function computes, so that another process finds its program again."""
    text = str(closed.jaxpr)
    besides = list(_besides(closed))
    text += "".join(f"\n{each}" for each in besides if isinstance(each, str))
    if jax_callbacks.HIDDEN in text or " at 0x" in text:
        return f"jax::{name}_{next(_serial)} at 0x0"  # two functions that call different Python have the same text
    constants = [each if hasattr(each, "dtype") else np.asarray(each) for each in besides if not isinstance(each, str)]
    if sum(np.size(each) * np.dtype(each.dtype).itemsize for each in constants) > _MOST_CONSTANTS:
        return f"jax::{name}_{next(_serial)} at 0x0"
    digest = hashlib.sha256(text.encode())
    for constant in constants:
        digest.update(f"{constant.dtype}{np.shape(constant)}".encode())
        digest.update(np.asarray(constant).tobytes())
    return f"jax::{name}_{digest.hexdigest()[:24]}"


def _besides(part: object, is_shown: bool = True) -> Iterator[Any]:
    """Return what determines a traced function's result and is not in its text, as arrays and texts.

    That is the arrays that it and the functions it calls close over, and the contents of settings that the text shows
    only in part, such as which block of an array a Pallas kernel reads.
    """
    if isinstance(part, jex.core.ClosedJaxpr):
        yield from part.consts
    inside = jax_callbacks.opened(part)
    if inside is not part:
        yield from _besides(inside, is_shown)
    elif isinstance(part, jex.core.Jaxpr):
        if not is_shown:
            yield str(part)
        for equation in part.eqns:
            for value in equation.params.values():
                yield from _besides(value)
    elif isinstance(part, (tuple, list)):
        for each in part:
            yield from _besides(each, is_shown)
    elif isinstance(part, (np.ndarray, jax.Array)):
        yield part
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        yield type(part).__name__
        for field in dataclasses.fields(part):
            yield from _besides(getattr(part, field.name), is_shown=False)
    elif not is_shown:
        yield repr(part)
