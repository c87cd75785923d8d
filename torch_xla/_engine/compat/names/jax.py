"""Private names of JAX: its modules, traces, values, executables from bytes, and symbolic sizes."""

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import compiler, config, pjit, stages, xla_bridge
from jax._src.core import InconclusiveDimensionOperation, ShapedArray, max_dim, min_dim
from jax._src.cudnn import fused_attention_stablehlo as _cudnn
from jax._src.interpreters import mlir, partial_eval, pxla
from jax._src.lax import lax as _lax
from jax._src.lax import linalg as _linalg
from jax._src.lax import windowed_reductions as _windowed
from jax._src.layout import Layout
from jaxlib import _jax, xla_client
from jaxlib.mlir import ir
from jaxlib.mlir.ir import WalkResult

from ...atomic import uncollected

# cuDNN's attention in whichever layout, with float32 logarithms: `jax.nn` takes one layout, and rounds them.
cudnn_attention: Callable[..., Any] = _cudnn.dot_product_attention
cudnn_masks: type[_cudnn.MaskType] = _cudnn.MaskType

# QR by Householder reflectors, left as they are: `jax.lax.linalg` offers what multiplies them, but not this.
geqrf: Callable[[jax.Array], tuple[jax.Array, jax.Array]] = _linalg.geqrf

# XLA's select-and-scatter with a choice of our own: `jax.lax` differentiates pools by it, but does not offer it.
select_and_scatter: Callable[..., jax.Array] = _windowed._select_and_scatter


# The MLIR context in which JAX lowers a module, with all dialects that it uses. JAX 0.10 makes one for each module,
# newer releases one for ten modules of a thread.
context_of_jax: Callable[[], ir.Context] = mlir.make_ir_context
# A new one, in every release.
module_context: Callable[[], ir.Context] = getattr(mlir, "_create_ir_context", context_of_jax)


# Whether a client of JAX runs, so that XLA has read its options.
has_client: Callable[[], bool] = xla_bridge.backends_are_initialized


def add_platform(name: str, make_client: Callable[[], object]) -> None:
    """Let JAX start a client by `make_client` when the platform `name` is requested."""
    xla_bridge.register_backend_factory(name, make_client, priority=-100, fail_quietly=False)


def add_plugin(
    name: str, library: str, options: Callable[[], Mapping[str, str | int | list[int] | float | bool]]
) -> None:
    """Let JAX load a PJRT plugin; packages that JAX finds itself do this when it looks for them."""
    xla_bridge.register_plugin(name, library_path=library, options=options)


def stablehlo_of(proto: bytes) -> bytes:
    """Return a serialised HLO module as bytecode of StableHLO: JAX shows the other direction alone."""
    try:
        found: bytes = _jax.mlir.hlo_to_stablehlo(proto)
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"this is no serialised HLO module: {error}") from error
    return found


def portable_artifact(bytecode: bytes, version: str) -> bytes:
    """Return StableHLO as a portable artifact of `version`: JAX's own way, which writes operations of CHLO as
    composites.

    Raises `ValueError` with what MLIR says; the function that JAX shows says no reason, and takes no CHLO.
    """
    try:
        return bytes(_jax.mlir.serialize_portable_artifact(bytecode, version))
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(str(error)) from error


def walk(module: Any, look: Callable[[ir.Operation], ir.WalkResult]) -> None:
    """Call `look` with each operation of a module. Of an interrupt meanwhile, MLIR keeps only the text."""
    try:
        module.operation.walk(look)
    except RuntimeError as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        raise


def multiplies_bfloat16(lowered: jax.stages.Lowered) -> bool:
    """Return whether the module contains a bfloat16 product. JAX has no public way to search its modules."""
    narrow = False

    def look(operation: ir.Operation) -> WalkResult:
        nonlocal narrow
        if operation.name == "stablehlo.dot_general" and "bf16" in str(operation.operands[0].type):
            narrow = True
            return WalkResult.INTERRUPT
        return WalkResult.ADVANCE

    module: Any = lowered.compiler_ir("stablehlo")
    walk(module, look)
    return narrow


# The settings of this thread by which JAX finds what it has traced before, in the order of their names.
trace_context: Callable[[], tuple[object, ...]] = config.trace_context
# Each trace decides on 64-bit types again, and the last names no setting.
_SETTINGS = [
    (place, name)
    for place, name in enumerate(config.trace_context_names())
    if name not in ("jax_enable_x64", "axis_env_state")
]


def trace_settings(context: tuple[object, ...]) -> tuple[tuple[str, object], ...]:
    """Return the settings in a `trace_context` that have a value, by their names."""
    found = [(name, context[place]) for place, name in _SETTINGS]
    return tuple((name, value) for name, value in found if value is not None and value is not False and value != ())


def drop_traces(most: int) -> None:
    """Drop JAX's traces if there are more than `most`.

    JAX keeps a trace as long as its function lives, which for functions of `jax.numpy` is for ever; its other tables
    have a bound. Compiled programs stay, and a function that is traced again gives the same trace.
    """
    traced: Any = partial_eval.trace_to_jaxpr
    if traced.cache_info().currsize > most:
        traced.cache_clear()
        # And which values of mutable objects it has seen (up to JAX 0.10): mostly that there were none, which is what
        # not to know means.
        for seen in list(getattr(pjit, "_seen_qdds", {}).values()):
            for operands in [operands for operands, cases in list(seen.items()) if not any(cases)]:
                seen.pop(operands, None)


def weakly_typed(scalar: jax.Array, dtype: np.dtype) -> jax.Array:
    """Return `scalar` as a value that behaves like a Python number in type promotion.

    A number that became an argument of a program must promote as it did when it was baked in, and JAX offers no public
    way to make a traced value weakly typed.
    """
    result: jax.Array = _lax._convert_element_type(scalar, dtype, weak_type=True)
    return result


# Return the dtype of an array. Its own `dtype` is a function of Python, called once for each input of a program.
dtype_of: Callable[[jax.Array], np.dtype] = attrgetter("aval.dtype")


def put(host: np.ndarray, device: jax.Device) -> jax.Array:
    """Return a buffer with the contents of `host`, in its dtype whatever `jax_enable_x64` says.

    `jax.device_put` does the same by way of a traced primitive, and takes 100 µs where this takes 4.
    """
    # Without x64 the numbers would be narrowed to 32 bits under an array that says it has 64.
    result: jax.Array = _jax.batched_device_put(
        _aval(host.shape, host.dtype), _on_one(device), [host], [device], True, False, _HOLDING[device.platform], True
    )
    return result


# How long a transfer uses host memory: a CPU buffer may share it; elsewhere the memory is free after the call.
_HOLDING: defaultdict[str, _jax.HostBufferSemantics] = defaultdict(
    lambda: _jax.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL, cpu=_jax.HostBufferSemantics.ZERO_COPY
)


_aval = functools.lru_cache(maxsize=1024)(ShapedArray)
_on_one = functools.lru_cache(maxsize=64)(jax.sharding.SingleDeviceSharding)


class Serialised(NamedTuple):
    """An executable in XLA's own form, the name under which profiles show it, and which outputs have a weak type."""

    data: bytes
    name: str
    weak: tuple[int, ...]


def serialised(compiled: jax.stages.Compiled) -> Serialised:
    """Return XLA's own form of an executable.

    JAX would pickle this together with its own objects around it, and unpickling runs whatever a file says. Raises
    `ValueError` for a program that holds objects of this process, such as a callback to Python.
    """
    whole: Any = compiled
    unloaded = getattr(whole._executable, "_unloaded_executable", None)
    if unloaded is None:
        raise ValueError("this backend does not serialise its executables")
    effects = [*unloaded.unordered_effects, *unloaded.ordered_effects]
    if effects or unloaded.host_callbacks or unloaded.keepalive or unloaded.mut or whole._params.const_args:
        raise ValueError("it holds objects of this process, such as callbacks to Python")
    if len(unloaded.kept_var_idx) != len(unloaded.input_avals):
        raise ValueError("it leaves out some of its inputs")
    weak = tuple(i for i, aval in enumerate(unloaded.output_avals) if aval.weak_type)
    return Serialised(unloaded.xla_executable.serialize(), unloaded.name, weak)


@uncollected
def load(data: bytes, devices: Sequence[jax.Device]) -> _jax.LoadedExecutable:
    """Return XLA's executable from what `serialised` gave, for these devices, among which it divides its program.

    Other bytes raise what XLA makes of them, or end the process.
    """
    client: _jax.Client = devices[0].client
    # The bytes name the devices they were compiled for, be they others.
    assignment = np.array([[device.id for device in devices]])
    options = compiler.get_compile_options(1, len(devices), device_assignment=assignment)
    return client.deserialize_executable(data, _jax.DeviceList(tuple(devices)), options)


def _layouts(ask: Callable[[], Sequence[object]]) -> list[Layout | None] | None:
    # JAX's own function for this takes whatever is raised in it, an interrupt too, for an answer.
    try:
        return [Layout.from_pjrt_layout(each) for each in ask()]
    except (NotImplementedError, jax.errors.JaxRuntimeError):
        return None  # a plugin that does not report it


def compiled_from(
    executable: _jax.LoadedExecutable,
    name: str,
    devices: Sequence[jax.Device],
    inputs: Sequence[jax.ShapeDtypeStruct],
    outputs: Sequence[jax.ShapeDtypeStruct],
    donated: Sequence[int],
) -> jax.stages.Compiled:
    """Wrap XLA's `executable` as JAX does, from plain descriptions of its inputs and outputs.

    All inputs and outputs have a sharding over `devices`. The outputs' `weak_type` is kept.
    """
    with jax.enable_x64(True):
        arguments = [ShapedArray(each.shape, each.dtype) for each in inputs]
        results = [ShapedArray(each.shape, each.dtype, weak_type=each.weak_type) for each in outputs]
    takes = _layouts(executable.get_parameter_layouts) or [None] * len(arguments)
    gives = _layouts(executable.get_output_layouts) or [None] * len(results)
    shardings = [each.sharding for each in inputs], [each.sharding for each in outputs]
    unloaded = pxla.UnloadedMeshExecutable(
        xla_executable=executable,
        device_list=_jax.DeviceList(tuple(devices)),
        backend=devices[0].client,
        input_avals=arguments,
        input_shardings=shardings[0],
        output_avals=results,
        output_shardings=shardings[1],
        committed=True,
        name=name,
        unordered_effects=[],
        ordered_effects=[],
        keepalive=[],
        host_callbacks=[],
        kept_var_idx=set(range(len(arguments))),
        mut=None,
        xla_in_layouts=takes,
        dispatch_in_layouts=pxla.get_dispatch_layouts(takes, shardings[0], arguments),
        xla_out_layouts=gives,
        all_args_info=None,
        pgle_profiler=None,
    )
    info = [stages.ArgInfo(aval, index in donated) for index, aval in enumerate(arguments)]
    return stages.Compiled(
        unloaded.load(), [], (tuple(info), {}), jax.tree.structure((0,) * len(results)), no_kwargs=True
    )


def is_interrupt(error: Exception) -> bool:
    """Return whether a program failed because a callback was interrupted; its text is all that is kept."""
    *_, last = str(error).strip().splitlines() or [""]
    return last.strip().partition(":")[0] == KeyboardInterrupt.__name__


def is_compile_only(device: jax.Device) -> bool:
    """Return whether programs can be compiled for a device, but not run on it: it comes from a topology."""
    return isinstance(getattr(device, "client", None), _jax.CompileOnlyPyClient)


_MOST_OF_A_PROCESS = 2048


def virtual_cpu_devices(number: int) -> tuple[jax.Device, ...]:
    """Return the devices of a CPU client of its own, as many as asked for: JAX lets a process choose the number
    once.
    """
    # XLA takes those beyond for another process's, and refuses programs for them unless it has collectives among
    # processes. Nothing runs, so these are not used and need no MPI.
    collectives = _jax.make_mpi_collectives() if number > _MOST_OF_A_PROCESS else None
    client: _jax.Client = xla_client.make_cpu_client(num_devices=number, collectives=collectives)
    return tuple(client.devices())


def prepare_linear_algebra() -> None:
    """Load the LAPACK that CPU kernels call. Lowering loads it, but an executable from disk was not lowered."""
    _linalg.initialize_lapack()


# Raised where something asks of a symbolic size what is not true of all its values, or of none.
InconclusiveDimension: type[Exception] = InconclusiveDimensionOperation


def greater_size(one: object, other: object) -> Any:
    """Return the greater of two sizes, which may be symbolic."""
    return max_dim(one, other)


def smaller_size(one: object, other: object) -> Any:
    """Return the smaller of two sizes."""
    return min_dim(one, other)


def size_for(size: Any, values: Mapping[str, jax.Array | np.generic | int]) -> jax.Array | np.generic | int:
    """Evaluate a symbolic size with a number, or an array of no dimensions, for each symbol.

    JAX's public interface makes symbolic sizes (`jax.export.symbolic_shape`), but does not evaluate them.
    """
    return size._evaluate(values)


def symbols_of(size: Any) -> tuple[str, ...]:
    """Return the symbols in a size; none in a number."""
    return () if isinstance(size, int) else tuple(size._get_vars())
