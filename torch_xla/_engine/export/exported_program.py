"""Convert a PyTorch `ExportedProgram` to StableHLO by the rules that lower recorded operations."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import torch
from jax.export import Exported
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.fx import GraphModule, Node

from .. import dtypes
from ..atomic import uncollected
from ..compat.names.torch import pytree, with_effects, without_modes
from ..ir.view.geometry import Geometry
from ..lowering.fx_graphs import decompositions, interpreter
from ..lowering.machinery.product_precision import exported_for
from ..lowering.views.apply_view_ops import read_places, read_view
from ..quiet_calls import quiet
from ..runtime import platform
from .saved_model import InputLocation, StableHLOFunc, StableHLOFunctionMeta, StableHLOModelBundle, VariableSignature
from .size_errors import refuse
from .stablehlo_composites import with_composites
from .stablehlo_modules import text_of, without_shardings
from .stablehlo_versions import rewritten as rewritten_version
from .stablehlo_versions import version_of

aten = torch.ops.aten


@dataclass
class Options:
    """How a program is exported."""

    inline_constants: bool = True
    export_weights: bool = True
    foreign_operators: frozenset[str] = frozenset()
    with_lines: bool = False
    platforms: tuple[str, ...] = ()
    stablehlo_version: str | None = None  # of the artifact; without one the oldest that holds the program


@dataclass
class _Inputs:
    """The arguments of the program's function: for each its node and its origin."""

    nodes: list[Node] = field(default_factory=list)
    locations: list[InputLocation] = field(default_factory=list)
    baked: dict[Node, object] = field(default_factory=dict)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    constants: list[np.ndarray] = field(default_factory=list)


# PyTorch copies its own structures in a way that it warns of.
_without_deprecation = quiet(FutureWarning, ".*LeafSpec.*deprecated")


def convert(program: ExportedProgram, options: Options, name: str = "forward") -> StableHLOModelBundle:
    """Return the program as a bundle with one function."""
    lowered = _without_deprecation(program.run_decompositions)(
        {**decompositions.table(), torch.ops.aten.view.default: copying_view}
    )
    leave_out_checks(lowered.graph_module)
    read_by_strides(lowered.graph_module)
    module = with_composites(lowered.graph_module)
    foreign = _admit_foreign(module, options.foreign_operators)
    inputs = _inputs(lowered, module, options)
    outputs = _outputs(lowered)
    draws = interpreter.draws(module)
    described, constraints = described_by(lowered, inputs.nodes)
    if draws:
        warnings.warn(
            "the exported program draws random numbers, the same at every call: its last constant is the key they come "
            "from. Export the model in evaluation mode, or give it another key before each call.",
            stacklevel=4,
        )
        inputs.locations.append(InputLocation.constant(len(inputs.constants)))
        inputs.constants.append(np.arange(4, dtype=np.uint32))
        described.append(jax.ShapeDtypeStruct((4,), np.dtype(np.uint32)))
    function = _function(module, inputs, outputs.places, draws)
    try:
        exported = _export(function, described, (options.platforms, foreign), name)
    except Exception as error:
        refuse(error, module)
        raise
    artifact = without_shardings(bytes(exported.mlir_module_serialized))
    artifact = rewritten_version(artifact, options.stablehlo_version)
    meta = StableHLOFunctionMeta(
        name=name,
        stablehlo_version=version_of(artifact),
        input_signature=[_signature(aval) for aval in exported.in_avals],
        output_signature=[_signature(aval) for aval in exported.out_avals[len(outputs.buffers) :]],
        input_locations=inputs.locations,
        unused_inputs=[],
        input_pytree_spec=_dumped(lowered.call_spec.in_spec),
        output_pytree_spec=_dumped(lowered.call_spec.out_spec),
        written_buffers=outputs.buffers,
        constant_outputs=outputs.constants,
        result_signature=[_signature(aval) for aval in exported.out_avals],
        constraints=constraints,
        platforms=list(exported.platforms),
        calling_convention_version=exported.calling_convention_version,
    )
    text = text_of(artifact, options.with_lines)
    weights = inputs.weights if options.export_weights else {}
    return StableHLOModelBundle(weights, inputs.constants, [StableHLOFunc(meta, artifact, text, exported)])


_CHECKS = (aten._assert_async.default, aten._assert_async.msg, aten._linalg_check_errors.default)


def leave_out_checks(module: GraphModule) -> None:
    """Remove nodes that only check values and may raise, as after a factorization: StableHLO cannot raise."""
    for node in reversed(module.graph.nodes):
        if node.target in _CHECKS and not node.users:
            module.graph.erase_node(node)
        elif node.target is with_effects and node.args[1] in _CHECKS:
            for used in list(node.users):
                used.replace_all_uses_with(node.args[0])  # the order among effects, which is all that it gives
                module.graph.erase_node(used)
            module.graph.erase_node(node)


def copying_view(tensor: torch.Tensor, size: Sequence[Any]) -> torch.Tensor:
    """Return a view as it was traced; a copy where another decomposition in front of it left its memory in another
    order.
    """
    if tensor.is_contiguous():
        return NotImplemented
    if not all(isinstance(n, int) for n in (*tensor.shape, *tensor.stride(), *size)):
        return tensor.clone(memory_format=torch.contiguous_format).view(size)
    try:
        with without_modes():  # the mode that decomposes would ask this function for the view
            torch.empty_strided(tensor.shape, tensor.stride(), device="meta").view(size)
    except (RuntimeError, ValueError):
        return tensor.clone(memory_format=torch.contiguous_format).view(size)
    return NotImplemented


def read_by_strides(module: GraphModule) -> None:
    """Replace `as_strided` by a read of its operand's memory, if the operand fills the memory."""
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.as_strided.default:
            value, shown = node.args[0].meta["val"], node.meta["val"]
            base = Geometry(tuple(value.shape), tuple(value.stride()))
            if not base.is_dense() or value.storage_offset():
                continue
            view = Geometry(tuple(shown.shape), tuple(shown.stride()), shown.storage_offset())
            numbers = (*base.size, *base.stride, *view.size, *view.stride, view.offset)
            if all(isinstance(n, int) for n in numbers):
                node.target = _reader(base, view)
            else:
                node.target = _reader_by_places(base.memory_order())


def _reader(base: Geometry, view: Geometry) -> Callable[..., object]:
    def read(array: Any, *_: object) -> jax.Array:
        return read_view(array, base, view)

    return read


def _reader_by_places(order: tuple[int, ...]) -> Callable[..., object]:
    def read(array: Any, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None) -> jax.Array:
        return read_places(array, order, size, stride, 0 if storage_offset is None else storage_offset)

    return read


def _inputs(program: ExportedProgram, module: GraphModule, options: Options) -> _Inputs:
    found = _Inputs()
    position = 0
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
        target = spec.target or ""
        if spec.kind is InputKind.USER_INPUT:
            if isinstance(spec.arg, ConstantArgument):
                found.baked[node] = spec.arg.value
            elif isinstance(spec.arg, TensorArgument):
                found.nodes.append(node)
                found.locations.append(InputLocation.input_arg(position))
            else:
                raise NotImplementedError(
                    f"argument {node.name!r} of the exported model is a number that may change; StableHLO functions "
                    f"take tensors. Pass torch.tensor(...) instead, or export with a fixed number."
                )
            position += 1
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            known = program.state_dict if target in program.state_dict else program.constants
            found.weights[target] = dtypes.to_numpy(known[target].cpu())
            found.nodes.append(node)
            found.locations.append(InputLocation.parameter(target))
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            constant = dtypes.to_numpy(program.constants[target].cpu())
            if options.inline_constants:
                found.baked[node] = constant
                continue
            found.nodes.append(node)
            found.locations.append(InputLocation.constant(len(found.constants)))
            found.constants.append(constant)
        elif spec.kind is InputKind.TOKEN:
            found.baked[node] = None
        else:
            raise NotImplementedError(
                f"the exported model takes {node.name!r}, a {spec.kind.name}, unknown to StableHLO"
            )
    return found


@dataclass
class _Outputs:
    """Which of the graph's outputs the function gives: buffers that are written first, then the user's tensors."""

    places: list[int] = field(default_factory=list)
    buffers: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)


def _outputs(program: ExportedProgram) -> _Outputs:
    found = _Outputs()
    leaf = 0
    for place, spec in enumerate(program.graph_signature.output_specs):
        if spec.kind is OutputKind.TOKEN:
            continue
        if spec.kind is OutputKind.BUFFER_MUTATION:
            found.places.append(place)
            found.buffers.append(spec.target or "")
            continue
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise NotImplementedError(
                f"the exported model writes to its argument {spec.target!r} ({spec.kind.name}); a StableHLO function "
                f"cannot. Clone the argument in the model, or return what was written."
            )
        if isinstance(spec.arg, ConstantArgument):
            found.constants[str(leaf)] = spec.arg.value
        elif isinstance(spec.arg, TensorArgument):
            found.places.append(place)
        else:
            raise NotImplementedError(
                f"result {leaf} of the exported model is a number that may change; return a tensor"
            )
        leaf += 1
    return found


def described_by(program: ExportedProgram, nodes: Sequence[Node]) -> tuple[list[jax.ShapeDtypeStruct], list[str]]:
    """Return the shapes of the nodes, with symbolic sizes of one scope, and the constraints on these sizes."""
    values = [node.meta["val"] for node in nodes]
    symbols = sorted(
        {str(s) for v in values for n in v.shape if isinstance(n, torch.SymInt) for s in n.node.expr.free_symbols}
    )
    constraints = _constraints(program, symbols)
    scope = jax.export.SymbolicScope(constraints)

    def shape(value: torch.Tensor) -> tuple[Any, ...]:
        if all(isinstance(n, int) for n in value.shape):
            return tuple(value.shape)
        return tuple(jax.export.symbolic_shape(",".join(map(_dimension, value.shape)) + ",", scope=scope))

    return [jax.ShapeDtypeStruct(shape(value), dtypes.to_jax(value.dtype)) for value in values], constraints


def _dimension(size: Any) -> str:
    """Return a size in the language of JAX's symbolic shapes."""
    return str(size if isinstance(size, int) else size.node.expr).replace("**", "^")


# The least size of a dynamic dimension to JAX, and one that PyTorch writes where it means no limit.
_LEAST, _NO_LIMIT = 1, 1 << 31


def _constraints(program: ExportedProgram, symbols: Sequence[str]) -> list[str]:
    found = []
    for symbol, bounds in program.range_constraints.items():
        if str(symbol) not in symbols:
            continue
        lower, upper = str(bounds.lower), str(bounds.upper)
        if lower.isdigit() and int(lower) > _LEAST:
            found.append(f"{symbol} >= {lower}")
        if upper.isdigit() and int(upper) < _NO_LIMIT:
            found.append(f"{symbol} <= {upper}")
    return found


def _function(module: GraphModule, inputs: _Inputs, places: Sequence[int], draws: int) -> Callable[..., object]:
    order = [node for node in module.graph.nodes if node.op == "placeholder"]

    def function(*arrays: Any) -> list[object]:
        values = {**inputs.baked, **dict(zip(inputs.nodes, arrays, strict=False))}
        keys = jax.random.split(jax.random.wrap_key_data(arrays[-1], impl="rbg"), draws) if draws else ()
        results = interpreter.interpret(module, [values[node] for node in order], keys)
        return [results[place] for place in places]

    return function


@uncollected
def _export(
    function: Callable[..., object], described: Sequence[object], where: tuple[Sequence[str], Sequence[str]], name: str
) -> Exported:
    platforms, foreign = where
    function.__name__ = name
    checks = [jax.export.DisabledSafetyCheck.custom_call(each) for each in foreign]
    with jax.enable_x64(True):
        jitted = jax.jit(function, keep_unused=True)
        chosen = platforms or (platform.export_platform(),)
        with exported_for(chosen):
            return jax.export.export(jitted, platforms=chosen, disabled_checks=checks)(*described)


def _signature(aval: Any) -> VariableSignature:
    shape = [n if isinstance(n, int) else -1 for n in aval.shape]
    dtype = str(dtypes.to_torch(aval.dtype)).removeprefix("torch.")
    dynamic = [dim for dim, n in enumerate(shape) if n < 0]
    return VariableSignature(shape, dtype, dynamic, "".join(f"{n}," for n in aval.shape) if dynamic else "")


def _dumped(spec: Any) -> str | None:
    """Return a structure as text; nothing if it holds a class that PyTorch cannot name in another process."""
    try:
        return pytree.treespec_dumps(spec)
    except NotImplementedError:
        return None


def _admit_foreign(module: GraphModule, allowed: frozenset[str]) -> list[str]:
    """Turn operators without a rule into foreign calls, and return their names; raise where this is not allowed."""
    missing = set(interpreter.operators_without_rule(module))
    refused = sorted(str(op) for op in missing if op.namespace not in allowed and str(op) not in allowed)
    if refused:
        raise NotImplementedError(
            f"no rule lowers {', '.join(refused)}. To leave such operators to the program's runtime, name them or "
            f"their namespace in StableHLOExportOptions(custom_ops_allowed_in_graph=...)."
        )
    for node in module.graph.nodes:
        if node.target in missing:
            node.target = _foreign(_foreign_name(node.target), node.meta["val"])
    return sorted(map(_foreign_name, missing))


def _foreign_name(op: object) -> str:
    return str(op).removesuffix(".default")


def _foreign(name: str, promised: object) -> Callable[..., object]:
    def call(*args: object, **kwargs: object) -> jax.Array:
        arrays = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, jax.Array)]
        described = pytree.tree_map(lambda x: jax.ShapeDtypeStruct(tuple(x.shape), dtypes.to_jax(x.dtype)), promised)
        return jax.ffi.ffi_call(name, described)(*arrays)

    return call
