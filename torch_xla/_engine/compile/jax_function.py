"""A graph as a JAX function, and its lowering: some of its numbers are constants, others arguments."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import compiler_options, dtypes
from ..atomic import uncollected
from ..compat.names import jax as private
from ..compat.names.jax_source_lines import located
from ..compat.patches import mlir_contexts
from ..ir.call_plan import Plan
from ..ir.graph import Graph
from ..ir.sharding import ANY, Placed, Sharding
from ..ir.value_spec import Spec
from ..lowering.machinery import replica_axis
from ..lowering.machinery.jax_sharding import carried, constrain, from_jax, to_jax
from ..lowering.machinery.lower_call import NeedsStaticNumber
from ..lowering.machinery.manual_regions import Manual, lower_on_devices
from ..metrics.events import Sizes
from ..runtime import topologies
from ..runtime.buffers import resized
from ..runtime.device_assignment import Target
from . import composites, shard_mapped, symbolic_length
from .executable_key import Key
from .inlining import inlined
from .source_metadata import UNKNOWN, Origins

# XLA may leave out roundings to a narrow float between fused operations; then the values depend on which results are
# outputs. PyTorch rounds each result. TPUs keep XLA's default, because the cost there has not been measured.
_OPTIONS = {name: {"xla_allow_excess_precision": False} for name in ("cpu", "gpu")}

# For programs that each process compiles on its own: XLA would divide the measuring of kernels among all processes, and
# wait for processes that compile another program, or have found this one on disk.
_APART = {"gpu": {"xla_gpu_shard_autotuning": False}}


def options_for(target: Target) -> dict[str, int | float | str] | None:
    """Return the compiler options for `target` without XLA's flags; `None` if there are none."""
    apart = _APART.get(target.platform, {}) if target.axis is not None else {}
    elsewhere = topologies.OPTIONS.get(target.platform, {}) if target.is_compile_only else {}
    return {**_OPTIONS.get(target.platform, {}), **apart, **elsewhere, **compiler_options.chosen()} or None


# A program of so few operations is lowered in a context that others before it were lowered in.
_FEW = 100
# Most elements of all constants together: they stay in the context.
_SMALL = 4096

# Of an error: the plans that cannot be compiled or run, and why.
_CULPRIT = "_culprit_of_torch_xla"


def blame(error: Exception, plans: Sequence[Plan], origin: str, text: str) -> None:
    """Add to an `error` with this `text` which of the `plans` caused it; `origin` describes the plan."""
    error.add_note(origin)
    setattr(error, _CULPRIT, ((*plans, *culprits_of(error)[0]), f"{text} ({origin})"))


def culprits_of(error: Exception) -> tuple[tuple[Plan, ...], str]:
    """Return the plans that cannot be compiled or run, if they are known to have caused `error`, and why they
    cannot.
    """
    found: tuple[tuple[Plan, ...], str] = getattr(error, _CULPRIT, ((), str(error)))
    return found


class MustBake(Exception):
    """Numbers that were to be arguments, and that a rule looked at."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__(numbers)
        self.numbers = numbers


def by_type(graph: Graph, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return those of the `numbers` (their indices in the graph) that are floats, and the others: a vector holds one
    type.
    """
    types = graph.number_types
    return [i for i in numbers if types[i] is float], [i for i in numbers if types[i] is not float]


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of an executable, and the positions of donated inputs."""

    inputs: tuple[jax.ShapeDtypeStruct, ...]
    outputs: tuple[jax.ShapeDtypeStruct, ...]  # without a sharding where XLA chooses it
    donated: tuple[int, ...]


def signature(graph: Graph, key: Key) -> Signature:
    """Return the signature of a graph's executable: inputs, vectors of the float and int arguments, random keys.

    Where each process runs the graph by itself it is what each takes and gives.
    """
    target = key.target
    everywhere = target.everywhere
    floats, ints = by_type(graph, key.arguments)

    def describe(size: tuple[int, ...], dtype: np.dtype, placed: object = everywhere) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(size, dtype, sharding=placed)

    def value(spec: Spec, placed: Placed) -> jax.ShapeDtypeStruct:
        dtype = dtypes.to_jax(dtypes.on_device(spec.dtype))
        sharding = None if placed is ANY else to_jax(placed, target)
        return describe(carried(spec.size, sharding), dtype, sharding)

    with jax.enable_x64(True):
        inputs = [value(spec, spec.sharding) for spec in graph.inputs]
        if floats:
            inputs.append(describe((len(floats),), np.dtype(np.float64)))
        if ints:
            inputs.append(describe((len(ints),), np.dtype(np.int64)))
        if graph.draws:
            inputs.append(describe((graph.draws, 4), np.dtype(np.uint32)))
        results = key.results or (None,) * len(graph.outputs)
        outputs = [value(graph.specs[slot], placed) for slot, placed in zip(graph.outputs, results, strict=True)]
    return Signature(tuple(inputs), tuple(outputs), key.donated)


def results_of(executable: Any, signature: Signature, target: Target) -> list[Sharding | None]:
    """Return how an executable of several devices divides each output; empty for one device."""
    if not target.is_spread:
        return []
    placed = jax.tree.leaves(executable.output_shardings)
    return [from_jax(each, given.shape, target) for each, given in zip(placed, signature.outputs, strict=True)]


@uncollected
def lowered(
    graph: Graph,
    key: Key,
    numbers: Sequence[float | int],
    origins: Origins,
    compiled_at_once: bool = False,
    look: Callable[[object], object] | None = None,
) -> Any:
    """Lower the graph as its `key` says, with the `numbers` that are not arguments baked in.

    The executable has its `signature`. `compiled_at_once` promises that this thread compiles the result immediately
    and does not keep it. `look` is called with the program as a jaxpr.
    """
    target = key.target
    if composites.are_in(graph):
        opened = inlined(graph)
        graph, origins = opened.graph, opened.origins(origins)
    floats, ints = by_type(graph, key.arguments)
    with jax.enable_x64(True), located(None, ()), replica_axis.lowering_for(target):
        found = signature(graph, key)
        function = as_function(graph, list(numbers), floats, ints, origins, found.outputs)
        described: Sequence[Any] = found.inputs
        if target.axis is not None:
            function, described = shard_mapped.of_each(function, found.inputs, found.outputs, target)
        elif target.is_spread and not described and all(each.sharding is None for each in found.outputs):
            function = _naming_devices(function, target)
        options: Any = options_for(target)
        # Without an input nothing else names a topology's device, and JAX would compile for one of its own.
        is_named = target.is_spread or (target.is_compile_only and not described)
        given = tuple(each.sharding for each in found.outputs) if is_named else None
        jitted = jax.jit(
            function, donate_argnums=key.donated, keep_unused=True, compiler_options=options, out_shardings=given
        )
        traced = jitted.trace(*described)
        if look is not None:
            look(traced.jaxpr.jaxpr)
        # On other platforms programs hold more than JAX's own dialects.
        is_small = target.is_host and target.mesh is None and len(graph.operations) <= _FEW
        is_small = is_small and sum(map(np.size, traced.jaxpr.consts)) <= _SMALL
        with mlir_contexts.kept() if is_small and compiled_at_once else nullcontext():
            return traced.lower()


def as_function(
    graph: Graph,
    numbers: list[float | int],
    floats: list[int],
    ints: list[int],
    origins: Origins = UNKNOWN,
    carriers: Sequence[jax.ShapeDtypeStruct] = (),
) -> Callable[..., tuple[jax.Array, ...]]:
    """Return the graph as a function of its inputs, then of the vectors of float numbers, int numbers and random keys.

    `carriers` are the arrays that hold its results; an array may be longer than its result.
    """

    def compute(index: int, operands: Sequence[Any], own: Sequence[Any], key: Any) -> Sequence[Any]:
        plan, first = graph.operations[index].plan, graph.operations[index].first_number
        try:
            with origins.of(graph, index):
                if plan.op == symbolic_length.GROWING:
                    return symbolic_length.computed(plan, operands, own, key)
                return lower_on_devices(plan, list(operands), list(own), key)
        except NeedsStaticNumber as error:
            if any(isinstance(number, jax.Array) for number in own):
                raise MustBake(range(first, first + len(plan.numbers))) from error
            raise
        except symbolic_length.StaticNumbers as error:
            raise MustBake([first + number for number in error.numbers]) from error
        except Exception as error:  # a rule may raise anything; the note says whose
            blame(error, [plan], f"Raised by the rule of {origins.described(graph, index)}", str(error))
            raise

    def program(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        rest = list(arguments[len(graph.inputs) :])
        given = [_without_padding(array, spec) for array, spec in zip(arguments, graph.inputs, strict=False)]
        filled: list[Any] = list(numbers)
        for indices, dtype in ((floats, np.dtype(np.float64)), (ints, np.dtype(np.int64))):
            if indices:
                vector = rest.pop(0)
                for place, index in enumerate(indices):
                    filled[index] = private.weakly_typed(vector[place], dtype)
        keys = jax.random.wrap_key_data(rest.pop(0), impl="rbg") if graph.draws else None
        values = composites.GraphRun(graph, given, compute).run(filled, keys)
        results = [_carrier(values[slot]) for slot in graph.outputs]
        if not carriers:
            return tuple(results)
        return tuple(_with_padding(one, carrier) for one, carrier in zip(results, carriers, strict=True))

    return program


def _naming_devices(function: Callable[..., Any], target: Target) -> Callable[..., Any]:
    """Return a function without arguments as one that names the devices of `target`.

    JAX compiles for the devices of the shardings it finds. Where XLA chooses how each result is divided there is none,
    and the program would be one for JAX's own first device. XLA drops the constant.
    """

    def program() -> Any:
        jax.lax.with_sharding_constraint(np.False_, target.everywhere)
        return function()

    return program


def _carrier(value: object) -> jax.Array:
    return value.array if isinstance(value, Manual) else jnp.asarray(value)


def _with_padding(array: jax.Array, carrier: jax.ShapeDtypeStruct) -> jax.Array:
    if array.shape == carrier.shape:
        return array
    return resized(jax.lax.with_sharding_constraint(array, carrier.sharding), carrier.shape)  # type: ignore[no-any-return]


def _without_padding(array: Any, spec: Spec) -> object:
    if spec.sharding is not None and spec.sharding.is_manual:
        return Manual(array)
    if array.shape == spec.size or spec.sharding is None:
        return array
    return constrain(resized(array, spec.size), spec.sharding)


def sizes(found: Any) -> Sizes:
    """Return the memory that XLA reports for one executable."""
    return Sizes(
        found.argument_size_in_bytes,
        found.output_size_in_bytes,
        found.alias_size_in_bytes,
        found.temp_size_in_bytes,
        found.generated_code_size_in_bytes,
    )
