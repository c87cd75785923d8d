"""Interpret an FX graph of functional aten operators in JAX, by the rules that lower recorded ones.

Arrays have no memory to share, so a view in such a graph is a copy of one, lowered by that rule.
"""

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch.fx import GraphModule, Node

from ... import dtypes
from ...compat.names import jax as private
from ...compat.names.jax_source_lines import located
from ...compat.names.torch import HigherOrderOperator, OpOverload, overload_name_of, pytree, schema_of
from ...ir.view.geometry import Geometry
from ...metrics.observers import observers
from ..linear_algebra.matmul import linear
from ..machinery import promotion
from ..machinery.cast import cast
from ..machinery.opmath import FLOAT32, rounded_to_halves, widened
from ..machinery.product_precision import precision_of
from ..machinery.registry import NEVER_ARRIVE, Promotion, Rule, rule_of, that_arrive
from ..views.apply_view_ops import read_view, write_view

# Operators whose arguments are graphs, such as loops: each a function of its arguments, in which graphs stay what they
# are, and of one random key where its graphs draw. Filled by the modules that lower them.
higher_order: dict[Any, Callable[..., Any]] = {}

# A frame as PyTorch writes it into its graphs.
_FRAME = re.compile(r'File "(.+?)", line (\d+), in (\S+)')

_HALVES = tuple(map(dtypes.to_jax, (torch.float16, torch.bfloat16)))

aten = torch.ops.aten

# Operators of a graph on sizes that were not known when it was traced. They are known when it is lowered.
_SIZES: dict[Any, Callable[..., Any]] = {
    aten.sym_size.int: lambda array, dim: array.shape[dim],
    aten.sym_size.default: lambda array: array.shape,
    aten.sym_numel.default: lambda array: array.size,
    # Held when the graph was traced, and nothing of it changes when it runs.
    aten._assert_tensor_metadata.default: lambda *_, **__: None,
    aten._assert_scalar.default: lambda *_, **__: None,
    aten.sym_constrain_range.default: lambda *_, **__: None,
    aten.sym_constrain_range_for_size.default: lambda *_, **__: None,
}

# The same of Python's numbers: a size of an exported program is none.
_NUMBERS: dict[object, Callable[..., object]] = {
    torch.sym_float: lambda size: jax.numpy.asarray(size, float) if jax.export.is_symbolic_dim(size) else float(size),
    torch.sym_max: lambda one, other: _chosen(private.greater_size, jax.numpy.maximum, one, other),
    torch.sym_min: lambda one, other: _chosen(private.smaller_size, jax.numpy.minimum, one, other),
}


def _chosen(of_sizes: Callable[..., object], of_arrays: Callable[..., object], one: object, other: object) -> object:
    """Choose the function for sizes or for arrays: if one of the two numbers is computed from sizes, it is an array."""
    return (of_arrays if isinstance(one, jax.Array) or isinstance(other, jax.Array) else of_sizes)(one, other)


# Uninitialised memory: outside of graphs it is a separate kind of value, not an operation. Here it is zeros.
EMPTY: dict[Any, Callable[..., Any]] = {
    aten.empty.memory_format: lambda size, **_: jax.numpy.zeros(tuple(size)),
    aten.empty_strided.default: lambda size, *_, **__: jax.numpy.zeros(tuple(size)),
    aten.empty_permuted.default: lambda size, *_, **__: jax.numpy.zeros(tuple(size)),
    aten.new_empty_strided.default: lambda _, size, *__, **___: jax.numpy.zeros(tuple(size)),
}


def _as_strided(array: jax.Array, size: Any, stride: Any, storage_offset: int | None = None) -> jax.Array:
    return read_view(array, Geometry.contiguous(array.shape), Geometry(tuple(size), tuple(stride), storage_offset or 0))


def _as_strided_scatter(
    array: jax.Array, src: jax.Array, size: Any, stride: Any, storage_offset: int | None = None
) -> jax.Array:
    view = Geometry(tuple(size), tuple(stride), storage_offset or 0)
    return write_view(array, src, Geometry.contiguous(array.shape), view)


# Operators whose strides address elements of a tensor's memory. An array has no strides. It represents a tensor whose
# elements are contiguous and fill the memory: PyTorch writes gradients through views into memory of that form.
_STRIDED: dict[Any, Callable[..., Any]] = {
    aten.as_strided.default: _as_strided,
    aten.as_strided_copy.default: _as_strided,
    aten.as_strided_scatter.default: _as_strided_scatter,
}


def _shows_elements_of_its_operand(node: Node) -> bool:
    """Return whether a strided `node` addresses only elements of its operand, a contiguous tensor of known size.

    A row of a larger tensor is contiguous, too, but the strides may address elements after its end.
    """
    value = node.all_input_nodes[0].meta.get("val")
    size, stride, *offset = node.args[2 if node.target is aten.as_strided_scatter.default else 1 :]
    numbers: Any = (*size, *stride, *offset, *node.kwargs.values())  # type: ignore[misc]
    if not isinstance(value, torch.Tensor) or not all(isinstance(n, int) for n in (*value.shape, *numbers)):
        return False
    view = Geometry(tuple(size), tuple(stride), *offset, *node.kwargs.values())  # type: ignore[arg-type]
    return value.is_contiguous() and value.storage_offset() == 0 and view.extent <= value.numel()


@functools.cache
def rule_for(op: OpOverload) -> Rule | None:
    """Return the rule of an operator in a graph: its own, or that of the copy if it is a view."""
    rule = rule_of(op)
    if rule is not None or not any(each.alias_info for each in schema_of(op).returns):
        return rule
    namespace, _, name = schema_of(op).name.partition("::")
    copies = getattr(getattr(torch.ops, namespace), f"{name}_copy", None)
    copy = None if op is aten.as_strided.default else getattr(copies, overload_name_of(op), None)
    return rule_of(copy) if isinstance(copy, OpOverload) else None


def operators_without_rule(module: GraphModule) -> list[Any]:
    """Return the operators of the graph, and of those inside it, that nothing lowers."""
    missing = [
        node.target
        for node in module.graph.nodes
        if node.op == "call_function"
        and (
            (isinstance(node.target, HigherOrderOperator) and node.target not in higher_order)
            or (
                isinstance(node.target, OpOverload)
                and node.target not in _SIZES
                and node.target not in EMPTY
                and not (node.target in _STRIDED and _shows_elements_of_its_operand(node))
                and rule_for(node.target) is None
            )
        )
    ]
    return missing + [op for graph in _graphs_inside(module) for op in operators_without_rule(graph)]


def graph_at(node: Node) -> GraphModule | None:
    """Return the graph that a node refers to, if it is an operand of an operator; else `None`."""
    held = _held_at(node)
    return held if isinstance(held, GraphModule) else None


def constant_at(node: Node) -> np.ndarray | None:
    """Return the elements of the tensor that a node refers to, if it is a constant of the graph; else `None`."""
    held = _held_at(node)
    return dtypes.to_numpy(held.cpu()) if isinstance(held, torch.Tensor) else None


def _held_at(node: Node) -> object:
    module = node.graph.owning_module
    return getattr(module, str(node.target), None) if node.op == "get_attr" and module is not None else None


def _graphs_inside(module: GraphModule) -> list[GraphModule]:
    found = [getattr(module, str(node.target)) for node in module.graph.nodes if node.op == "get_attr"]
    return [each for each in found if isinstance(each, GraphModule)]


def calls_python(module: GraphModule) -> bool:
    """Return whether an operator of the graph, or of inner graphs, calls Python on the host while the program runs."""
    # An operation of our own is an argument: its name.
    nodes = module.graph.nodes
    names = [each for node in nodes for each in (node.target, *node.args) if each.__class__ is str or callable(each)]
    rules = map(rule_of, names)
    return any(rule is not None and rule.calls_python for rule in rules) or any(
        map(calls_python, _graphs_inside(module))
    )


def draws(module: GraphModule) -> int:
    """Return the number of operators of the graph that draw random numbers; one that takes graphs draws once."""
    return sum(is_random(module, node) for node in module.graph.nodes)


def is_random(module: GraphModule, node: Node) -> bool:
    """Return whether a node of the graph draws random numbers."""
    if isinstance(node.target, OpOverload):
        rule = rule_for(node.target)
        return rule is not None and rule.draws(node.args, node.kwargs)
    if isinstance(node.target, HigherOrderOperator):
        taken = [getattr(module, str(each.target)) for each in node.all_input_nodes if each.op == "get_attr"]
        return any(isinstance(each, GraphModule) and draws(each) > 0 for each in taken)
    return False


def interpret(module: GraphModule, arrays: Sequence[object], keys: Iterable[jax.Array], is_wide: bool = False) -> Any:
    """Return the outputs of the graph for these inputs and a key for each of its draws, nested as it returns them.

    If `is_wide`, values that the graph has in float16 or bfloat16 are float32 here, except where it casts them.
    """
    arrays = list(map(widened, arrays)) if is_wide else arrays
    values: dict[Node, Any] = {}
    inputs = iter(arrays)
    unused = iter(keys)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(inputs)
        elif node.op == "get_attr":
            inside = graph_at(node)
            values[node] = jax.numpy.asarray(constant_at(node)) if inside is None else inside
            values[node] = widened(values[node]) if is_wide else values[node]
        elif node.op == "output":
            return torch.fx.node.map_arg(node.args[0], values.__getitem__)
        elif isinstance(node.target, OpOverload):
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            if is_random(module, node):
                kwargs = {**kwargs, "key": next(unused)}
            layer = _layer(node)
            with located(line_of(node), (*_modules_of(node), schema_of(node.target).name)):
                if layer is not None:
                    operands = [values[each] for each in layer if each is not None]
                    with precision_of(operands):
                        result = linear(*operands)
                    values[node] = _as_promised(result, node.meta.get("val"), is_wide)
                else:
                    values[node] = _call(node, args, kwargs, is_wide)
            if observers.watch_node is not None:
                observers.watch_node(node, (args, kwargs), values[node])
        else:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            function = higher_order.get(node.target) or _NUMBERS.get(node.target, node.target)
            if is_random(module, node):
                kwargs = {**kwargs, "key": next(unused)}
            with located(line_of(node), ()):
                values[node] = function(*args, **kwargs)
    raise ValueError("a graph without an output")


_TRANSPOSED = (
    (aten.permute.default, [1, 0]),
    (aten.t.default,),
    (aten.transpose.int, 0, 1),
    (aten.transpose.int, 1, 0),
)


def _layer(node: Node) -> tuple[Node, Node, Node | None] | None:
    """Return input, weight and bias of a linear layer, which a graph writes as a product with the transposed weight.

    For an input of one row, XLA:CPU would transpose the weight in memory, again in each round of a loop.
    """
    bias: Any = None
    args: Any = node.args
    if node.target is aten.mm.default:
        given, transposed = args
    elif node.target is aten.addmm.default and len(args) == 3 and not node.kwargs:
        bias, given, transposed = args
    else:
        return None
    if (transposed.target, *transposed.args[1:]) not in _TRANSPOSED:
        return None
    return given, transposed.args[0], bias


def line_of(node: Node) -> tuple[str, int, str] | None:
    """Return the line of the program that a node of a compiled graph comes from."""
    found = _FRAME.findall(node.stack_trace or "")
    return (found[-1][0], int(found[-1][1]), found[-1][2]) if found else None


def _modules_of(node: Node) -> list[str]:
    """Return the classes of the modules around a node, outermost first; in backward, those of the forward pass."""
    modules = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    # A graph that was saved has the names of the classes.
    return [kind.__name__ if isinstance(kind, type) else str(kind).rpartition(".")[2] for _, kind in modules.values()]


def _call(node: Node, args: Any, kwargs: Any, is_wide: bool) -> object:
    if node.target in _SIZES:
        return _SIZES[node.target](*args, **kwargs)
    if node.target in EMPTY:
        return _as_promised(EMPTY[node.target](*args, **kwargs), node.meta.get("val"), is_wide)
    if node.target in _STRIDED:
        return _as_promised(_STRIDED[node.target](*args, **kwargs), node.meta.get("val"), is_wide)
    rule = rule_for(node.target)
    if rule is None:
        raise NotImplementedError(f"{node.target} has no lowering rule")
    args = that_arrive(node.target, args)
    kwargs = {name: value for name, value in kwargs.items() if name not in NEVER_ARRIVE}
    if rule.promotion is not Promotion.NONE:
        args, kwargs = _promote(rule.promotion, args, kwargs)
    with precision_of(pytree.tree_leaves((args, kwargs))):
        result = rule.lower(*args, **kwargs)
    return _as_promised(result, node.meta.get("val"), is_wide)


def _promote(kind: Promotion, args: object, kwargs: object) -> tuple[object, object]:
    # PyTorch's trees, because to JAX the lists of an FX graph are leaves.
    leaves = pytree.tree_leaves((args, kwargs))
    tensors = [(dtypes.to_torch(x.dtype), x.ndim) for x in leaves if isinstance(x, jax.Array)]
    numbers = [x for x in leaves if isinstance(x, (bool, int, float, complex))]
    common = promotion.common_dtype(tensors, numbers)
    dtype = dtypes.to_jax(promotion.float_dtype(common) if kind is Promotion.FLOAT else common)
    promoted: tuple[object, object] = pytree.tree_map(
        lambda x: cast(x, dtype) if isinstance(x, jax.Array) and x.dtype != dtype else x, (args, kwargs)
    )
    return promoted


def _as_promised(result: Any, promised: Any, is_wide: bool) -> Any:
    if result is None:
        return None  # masked out by the call; PyTorch's description of the operator does not know
    if isinstance(promised, torch.Tensor):
        dtype = dtypes.to_jax(promised.dtype)
        array = jax.numpy.asarray(result)
        if is_wide and dtype in _HALVES:
            return widened(cast(array, dtype) if array.dtype != FLOAT32 else array)
        array = array if array.dtype == dtype else cast(array, dtype)
        return rounded_to_halves(array) if promised.dtype is torch.complex32 else array
    if isinstance(promised, (list, tuple)):
        return [_as_promised(r, p, is_wide) for r, p in zip(result, promised, strict=False)]
    return result
