"""Run functions of varying sizes at the sizes of buckets: trace with symbols, run on padded operands."""

import copy
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument

from .. import dtypes
from ..atomic import uncollected
from ..compat.names import jax as private
from ..compiled.loops.closure_captures import with_captured
from ..compiled.loops.loop_bodies import graph_for
from ..interop import jax_functions
from ..ir.value_spec import contiguous_stride
from ..lowering.fx_graphs import decompositions, interpreter
from ..lowering.machinery.padded_functions import bounded
from ..quiet_calls import quiet
from ..tensor.storage import shows_all, value_of
from . import exported_program as exported
from .stablehlo_composites import with_composites


class _Called(torch.nn.Module):
    """A function, with the modules and tensors it names, as the module that PyTorch exports."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function
        # tensors that the function itself refers to, out of reach of reparametrisation
        self.tensors: dict[str, torch.Tensor] = {}
        if inspect.isfunction(function):
            named = inspect.getclosurevars(function)
            for name, value in {**named.globals, **named.nonlocals}.items():
                if isinstance(value, torch.nn.Module):
                    self.add_module(f"of_{name}", value)
                elif isinstance(value, torch.Tensor):
                    self.tensors[f"of_{name}"] = value
                    if isinstance(value, torch.nn.Parameter):
                        self.register_parameter(f"of_{name}", value)
                    else:
                        self.register_buffer(f"of_{name}", value)

    def forward(self, *args: object) -> Any:
        traced = [getattr(self, name) for name in self.tensors]
        return with_captured(self.function, list(self.tensors.values()), traced)(*args)


@dataclass(frozen=True)
class SymbolicGradient:
    """The graph of a function of symbolic sizes, differentiated as PyTorch does: JAX has other slopes at corners."""

    module: Any
    nodes: tuple[torch.fx.Node, ...]  # what it takes that changes, in the order of `TracedForSizes.inputs`
    baked: dict[torch.fx.Node, object]

    def of(self, wanted: Sequence[int], given: Sequence[int]) -> Callable[..., list[object]]:
        """Return a function of all inputs and the `given` outputs' gradients that computes the `wanted` gradients."""
        count, order = len(self.nodes), [node for node in self.module.graph.nodes if node.op == "placeholder"]
        results = self.module.graph.output_node().args[0]
        examples = [node.meta["val"] for node in (*self.nodes, *(results[place] for place in given))]

        def pull(*tensors: torch.Tensor) -> list[torch.Tensor]:
            operands = [each.detach().requires_grad_(place in wanted) for place, each in enumerate(tensors[:count])]
            values = {**self.baked, **dict(zip(self.nodes, operands, strict=True))}
            with torch.enable_grad():
                found = torch.fx.Interpreter(self.module).run(*map(values.__getitem__, order))
            pairs = [
                (found[place], grad)
                for place, grad in zip(given, tensors[count:], strict=True)
                if found[place].requires_grad
            ]
            chosen = [operands[place] for place in wanted]
            if not pairs:
                return list(map(torch.zeros_like, chosen))
            ends, grads = zip(*pairs, strict=True)
            gradients = torch.autograd.grad(ends, chosen, grads, allow_unused=True, materialize_grads=True)
            return [each.clone() for each in gradients]

        table = {**decompositions.table(), aten.view.default: exported.copying_view}
        graph = graph_for(pull, examples, table)
        exported.read_by_strides(graph)
        return lambda *arrays: list(interpreter.interpret(graph, arrays, ()))


@dataclass(frozen=True)
class TracedForSizes:
    """A function of symbolic sizes: what it takes beside its arguments, what it gives, and its gradients."""

    symbols: tuple[str, ...]
    weights: tuple[torch.Tensor, ...]
    run: Callable[..., list[Any]]  # of the arrays of its weights, then of its arguments
    pull: SymbolicGradient
    inputs: tuple[Any, ...]  # of the same: their symbolic shapes and dtypes
    outputs: tuple[Any, ...]
    tree: Any
    jaxprs: dict[Any, Any] = field(default_factory=dict)

    def forward(self) -> Any:
        """Return the jaxpr that computes the results; trace it at the first call."""
        if None not in self.jaxprs:
            self.jaxprs[None] = _jaxpr(self.run, self.inputs)
        return self.jaxprs[None]

    def backward(self, wanted: tuple[int, ...], given: tuple[int, ...]) -> object:
        """Return the jaxpr that computes gradients of the `wanted` inputs; trace it at the first call.

        Its arguments are all inputs, then the gradients of the outputs `given`.
        """
        key = wanted, given
        if key not in self.jaxprs:
            pull = self.pull.of(wanted, given)
            self.jaxprs[key] = _jaxpr(pull, (*self.inputs, *(self.outputs[place] for place in given)))
        return self.jaxprs[key]


@uncollected
def _jaxpr(function: Callable[..., object], inputs: Sequence[object]) -> Any:
    try:
        with jax.enable_x64(True):
            return jax.jit(function, keep_unused=True).trace(*inputs).jaxpr
    except (
        private.InconclusiveDimension,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:  # what a rule asks of a size
        said = str(error).strip().partition("\n")[0]
        raise NotImplementedError(
            f"a size that changes reaches an operation that has to know it ({said}). Compute it outside of the "
            f"function, or give the function sizes that do not change"
        ) from error


def _attention(
    query: Any,
    key: Any,
    value: Any,
    bias: jax.Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> jax.Array:
    """Compute attention of symbolic sizes: the operator's own rule chooses blocks by the number of rows."""
    if dropout_p:
        raise NotImplementedError(_DRAWS)
    if enable_gqa:
        key, value = (jnp.repeat(x, query.shape[-3] // x.shape[-3], axis=-3) for x in (key, value))
    wide = np.promote_types(query.dtype, np.float32)
    scores = jnp.matmul(query, jnp.swapaxes(key, -1, -2), preferred_element_type=wide)
    scores = scores * np.asarray(query.shape[-1] ** -0.5 if scale is None else scale, wide)
    if is_causal:
        rows, columns = (lax.broadcasted_iota(np.int32, scores.shape, scores.ndim - back) for back in (2, 1))
        scores = jnp.where(columns <= rows, scores, -np.inf)
    if bias is not None:
        scores = jnp.where(bias, scores, -np.inf) if bias.dtype == np.bool_ else scores + bias.astype(wide)
    # A row that sees nothing gives zeros.
    largest = lax.stop_gradient(jnp.max(scores, -1, keepdims=True))
    powers = jnp.exp(scores - jnp.where(largest == -np.inf, np.asarray(0, wide), largest))
    total = jnp.sum(powers, -1, keepdims=True)
    weights = powers / jnp.where(total == 0, np.asarray(1, wide), total)
    return jnp.matmul(weights.astype(query.dtype), value, preferred_element_type=wide).astype(query.dtype)


def _attention_to_differentiate(
    query: object,
    key: object,
    value: object,
    bias: object = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: object,
) -> object:
    """Compute the same in PyTorch's smaller operators, which have gradients of their own."""
    return aten._scaled_dot_product_attention_math(query, key, value, bias, dropout_p, is_causal, None, **options)[0]


aten = torch.ops.aten
_DRAWS = (
    "a function of bucketed sizes draws random numbers, which would be others on padded tensors. Leave dropout to the "
    "part outside of it, or put the module into evaluation mode"
)

_without_warnings = quiet(FutureWarning)


def trace(
    function: Callable[..., object], args: Sequence[object], dims: Mapping[int, Collection[int]]
) -> TracedForSizes:
    """Trace `function` for arguments with changing dimensions. Raises the errors of PyTorch's export."""
    module = _Called(function)
    shapes = tuple({dim: torch.export.Dim.DYNAMIC for dim in dims.get(place, ())} for place in range(len(args)))
    there = tuple(arg.detach().to("xla") if isinstance(arg, torch.Tensor) else arg for arg in args)
    found = _without_warnings(torch.export.export)(module, there, dynamic_shapes=(shapes,), strict=False)
    for node in found.graph.nodes:  # decomposed attention may have another memory order (PyTorch 2.11)
        if node.target is aten.view.default:
            node.target = aten.reshape.default
    table = {**decompositions.table(), aten.view.default: exported.copying_view}
    lowered = _without_warnings(found.run_decompositions)(table)
    plain: Any = copy.deepcopy(lowered.graph_module)
    exported.read_by_strides(lowered.graph_module)
    graph = with_composites(lowered.graph_module)
    for traced, attention in ((graph, _attention), (plain, _attention_to_differentiate)):
        for node in traced.graph.nodes:
            if node.target is aten.scaled_dot_product_attention.default:
                node.target = attention
    _refuse_what_is_no_function(lowered, graph)
    order = [node for node in graph.graph.nodes if node.op == "placeholder"]
    taken, weights, baked = [], [], {}
    for node, spec in zip(order, lowered.graph_signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument):
            taken.append(node)
        elif spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, ConstantArgument):
            baked[node] = spec.arg.value
        else:
            held = lowered.state_dict if spec.target in lowered.state_dict else lowered.constants
            weights.append((node, _live(module, spec.target, held)))
    nodes = [*(node for node, _ in weights), *taken]
    same = dict(zip(order, (node for node in plain.graph.nodes if node.op == "placeholder"), strict=True))
    pull = SymbolicGradient(plain, tuple(same[node] for node in nodes), {same[node]: baked[node] for node in baked})
    described, _ = exported.described_by(lowered, nodes)

    def run(*arrays: object) -> list[object]:
        values = {**baked, **dict(zip(nodes, arrays, strict=True))}
        return list(interpreter.interpret(graph, [values[node] for node in order], ()))

    outputs = _jaxpr(run, described).out_avals
    symbols = sorted(
        {name for each in (*described, *outputs) for size in each.shape for name in private.symbols_of(size)}
    )
    shaped = tuple(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in outputs)
    held = tuple(weight for _, weight in weights)
    return TracedForSizes(tuple(symbols), held, run, pull, tuple(described), shaped, lowered.call_spec.out_spec)


def _live(module: torch.nn.Module, name: str | None, held: Mapping[str, object]) -> torch.Tensor:
    """Return the user's own tensor, whose contents may change, for a tensor of the exported program."""
    owner, _, last = str(name).rpartition(".")
    try:
        found = getattr(module.get_submodule(owner), last)
    except AttributeError:
        found = held[str(name)]
    return found if isinstance(found, torch.Tensor) else torch.as_tensor(found)


def _refuse_what_is_no_function(program: Any, graph: Any) -> None:
    for spec in program.graph_signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise NotImplementedError(
                f"a function of bucketed sizes writes to {spec.target!r}. Return what is written instead, or put the "
                f"module that does so (batch normalisation) into evaluation mode"
            )
        if not isinstance(spec.arg, TensorArgument):
            raise NotImplementedError("a function of bucketed sizes returns tensors; it returned a number or None")
    if interpreter.draws(graph):
        raise NotImplementedError(_DRAWS)


@dataclass(frozen=True)
class Bucket:
    """A traced function at one size for each of its symbols."""

    traced: TracedForSizes
    rooms: tuple[int, ...]

    def operands(self, counts: Sequence[int], args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the operands of the program: the counts, then the weights and the padded arguments."""
        given = [*self.traced.weights, *args]
        padded = [self._padded(x, described.shape) for x, described in zip(given, self.traced.inputs, strict=True)]
        return [torch.tensor(counts, dtype=torch.int32, device=padded[-1].device), *padded]

    def _padded(self, tensor: torch.Tensor, shape: Sequence[object]) -> torch.Tensor:
        room = self.room_of(shape)
        fits = tuple(tensor.shape) == room and tensor.device.type == "xla"
        return tensor if fits else padded_to(tensor, room)

    def room_of(self, shape: Sequence[object]) -> tuple[int, ...]:
        """Return a symbolic shape with the bucket's sizes."""
        rooms = dict(zip(self.traced.symbols, self.rooms, strict=True))
        return tuple(size if isinstance(size, int) else int(private.size_for(size, rooms)) for size in shape)

    def run(self, jaxpr: object, operands: Sequence[torch.Tensor], name: str) -> list[torch.Tensor]:
        """Record the traced function, on padded tensors."""
        key = id(jaxpr), self.rooms
        if key not in self.traced.jaxprs:
            self.traced.jaxprs[key] = bounded(jaxpr, self.traced.symbols, self.rooms)
        with torch.no_grad(), jax.enable_x64(True):
            return list(jax_functions.call(self.traced.jaxprs[key], operands, {}, name))


def padded_to(tensor: torch.Tensor, room: Sequence[int]) -> torch.Tensor:
    """Return the tensor padded with zeros to the size `room`, without a copy if its memory already has this size.

    A tensor on the host, or one that can be copied there without a program, is padded on the host. So no program is
    compiled for its size alone.
    """
    if tensor.device.type == "xla":
        value = value_of(tensor)
        whole = value.spec.size == tuple(room) and tensor.dtype is value.spec.dtype
        if whole and tensor.stride() == value.spec.stride and not tensor.storage_offset():
            return tensor.as_strided(tuple(room), value.spec.stride, 0)
    host = tensor.detach().cpu()
    wider = torch.zeros(tuple(room), dtype=host.dtype)
    wider[tuple(map(slice, host.shape))] = host
    return wider.to("xla" if tensor.device.type == "cpu" else tensor.device)


def cut(tensor: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """Return the elements that count: a view of the padded memory."""
    return tensor.as_strided(tuple(size), contiguous_stride(tuple(tensor.shape)), 0)


class Bucketed(torch.autograd.Function):
    """A call at one bucket. Its gradients are computed by a program of the same bucket."""

    @staticmethod
    def forward(ctx: Any, bucket: Bucket, counts: tuple[int, ...], *tensors: torch.Tensor) -> Any:
        """Return the results, cut to their own sizes; `counts` are those sizes, `tensors` the weights and the
        inputs.
        """
        traced = bucket.traced
        operands = bucket.operands(counts, tensors[len(traced.weights) :])
        results = bucket.run(traced.forward(), operands, "bucketed")
        ctx.bucket, ctx.counts = bucket, counts
        ctx.save_for_backward(*tensors, *operands)
        values = dict(zip(traced.symbols, counts, strict=True))
        shown = []
        for result, described in zip(results, traced.outputs, strict=True):
            size = [n if isinstance(n, int) else int(private.size_for(n, values)) for n in described.shape]
            shown.append(cut(result.to(dtypes.to_torch(described.dtype)), size))
        ctx.floats = tuple(i for i, each in enumerate(shown) if each.is_floating_point())
        ctx.mark_non_differentiable(*(each for each in shown if not each.is_floating_point()))
        return tuple(shown)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of the weights and inputs, for those of the results."""
        bucket, count = ctx.bucket, len(ctx.bucket.traced.inputs)
        tensors, operands = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        wanted = tuple(i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed)
        shapes = [bucket.traced.outputs[i].shape for i in ctx.floats]
        padded = [on_device(grads[i], bucket.room_of(shape)) for i, shape in zip(ctx.floats, shapes, strict=True)]
        found = bucket.run(bucket.traced.backward(wanted, ctx.floats), [*operands, *padded], "bucketed_backward")
        results: list[torch.Tensor | None] = [None] * count
        for place, grad in zip(wanted, found, strict=True):
            target = tensors[place]
            found_here = grad if grad.shape == target.shape else cut(grad, target.shape)
            results[place] = found_here.to(target.device)
        return None, None, *results


def on_device(grad: torch.Tensor, room: Sequence[int]) -> torch.Tensor:
    """Return a gradient with zeros behind it: recorded, as nothing on the host has it."""
    value = value_of(grad)
    if tuple(grad.shape) == tuple(room) and shows_all(grad, value.spec):
        return grad
    if value.spec.size == tuple(room) and grad.stride() == value.spec.stride and not grad.storage_offset():
        return grad.as_strided(tuple(room), value.spec.stride, 0)
    wide = grad.new_zeros(tuple(room))
    wide[tuple(map(slice, grad.shape))] = grad
    return wide
