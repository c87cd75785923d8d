"""The functions of PyTorch/XLA's C++ extension that programs call by name.

For new programs the public modules have the same: `torch_xla`, `torch_xla.runtime`, `torch_xla.core.xla_model`,
`torch_xla.debug.metrics`. In PyTorch/XLA the extension was importable as `_XLAC` too, and so is this, once
`torch_xla` has been imported.
"""

import sys
from collections.abc import Callable, Sequence

import jax
import torch

from .._engine import diagnostics, dtypes, interop, metrics, processes, runtime, sharding, step, transfer
from .._engine import precision as _precision
from .._engine import tensor as _tensor
from .._engine.compat import removed_names
from .._engine.compile import program_cache
from .._engine.ir import OpSharding as OpSharding
from .._engine.ir import XlaShardingSpec as XlaShardingSpec
from .._engine.tensor import device as devices
from ..version import __version__
from . import profiler as profiler
from ._collectives import *  # noqa: F403
from ._computations import _get_buffer_donation as _get_buffer_donation
from ._computations import _is_placecholder as _is_placecholder
from ._computations import _run_stablehlo as _run_stablehlo
from ._computations import _set_buffer_donation as _set_buffer_donation
from ._computations import _xla_create_placeholder_tensor as _xla_create_placeholder_tensor
from ._computations import _xla_custom_call as _xla_custom_call
from ._computations import (
    _xla_get_enable_alias_with_buffer_donor_config as _xla_get_enable_alias_with_buffer_donor_config,
)
from ._computations import (
    _xla_set_enable_alias_with_buffer_donor_config as _xla_set_enable_alias_with_buffer_donor_config,
)
from ._computations import _xla_tpu_custom_call as _xla_tpu_custom_call
from ._computations import _xla_user_computation as _xla_user_computation
from ._computations import lowering as lowering
from ._devices import *  # noqa: F403
from ._operators import *  # noqa: F403
from ._preemption import _activate_preemption_sync_manager as _activate_preemption_sync_manager
from ._preemption import _deactivate_preemption_sync_manager as _deactivate_preemption_sync_manager
from ._preemption import _sync_point_reached as _sync_point_reached
from ._settings import *  # noqa: F403
from ._shapes import _dynamic_shape_detector_end_session as _dynamic_shape_detector_end_session
from ._shapes import _dynamic_shape_detector_remove_session as _dynamic_shape_detector_remove_session
from ._shapes import _dynamic_shape_detector_start_session as _dynamic_shape_detector_start_session
from ._shapes import _xla_mark_dynamic as _xla_mark_dynamic
from ._shapes import most_graphs as _dynamic_shape_detector_get_max_different_graphs  # noqa: F401
from ._shapes import most_graphs as _dynamic_shape_detector_get_max_num_different_graphs_allowed  # noqa: F401
from ._shapes import set_most_graphs as _dynamic_shape_detector_set_max_different_graphs  # noqa: F401
from ._shapes import set_most_graphs as _dynamic_shape_detector_set_max_num_different_graphs_allowed  # noqa: F401
from ._shardings import _get_local_shard_replica_and_indices as _get_local_shard_replica_and_indices
from ._shardings import _get_local_shards as _get_local_shards
from ._shardings import _get_xla_op_sharding as _get_xla_op_sharding
from ._shardings import _get_xla_sharding_spec as _get_xla_sharding_spec
from ._shardings import _get_xla_sharding_specs as _get_xla_sharding_specs
from ._shardings import _get_xla_sharding_type as _get_xla_sharding_type
from ._shardings import _global_tensor_from_cpu_shards as _global_tensor_from_cpu_shards
from ._shardings import _load_local_shards as _load_local_shards
from ._shardings import _mark_manual_sharding as _mark_manual_sharding
from ._shardings import _spmd_full_to_shard_shape as _spmd_full_to_shard_shape
from ._shardings import _spmd_shard_to_full_shape as _spmd_shard_to_full_shape
from ._shardings import _xla_annotate_custom_sharding as _xla_annotate_custom_sharding
from ._shardings import _xla_clear_sharding as _xla_clear_sharding
from ._shardings import _xla_get_auto_sharding as _xla_get_auto_sharding
from ._shardings import _xla_mark_sharding as _xla_mark_sharding
from ._shardings import _xla_set_auto_sharding as _xla_set_auto_sharding
from ._shardings import _xla_spmd_all_reduce as _xla_spmd_all_reduce
from ._shardings import _xla_spmd_reduce_scatter as _xla_spmd_reduce_scatter

sys.modules.setdefault("_XLAC", sys.modules[__name__])

__getattr__ = removed_names.asked_of(__name__)

Tensors = Sequence[torch.Tensor]


def _get_xla_tensors_text(tensors: Tensors) -> str:
    """Return the recorded computation of `tensors`, one operation per line.

    After `_set_ir_debug(True)` it contains the lines of your program.
    >>> import torch, torch_xla
    >>> t = torch.tensor(1, device="xla")
    >>> print(torch_xla._XLAC._get_xla_tensors_text([t * t]), end="")
    IR {
      %0 = s64[] xla::device_data()
      %1 = s64[] aten::mul(%0, %0), ROOT=0
    }
    """
    return step.pending_ir_text(tensors)


def _get_xla_tensors_dot(tensors: Tensors) -> str:
    """Return the recorded computation of `tensors` for Graphviz."""
    return step.pending_ir_dot(tensors)


def _get_xla_tensors_hlo(tensors: Tensors) -> str:
    """Return the recorded computation of `tensors` as HLO text, before XLA optimises it."""
    return step.pending_hlo_text(tensors)


def _get_xla_tensors_hlo_proto(tensors: Tensors) -> bytes:
    """Return the recorded computation of `tensors` as a serialised HLO module."""
    return step.pending_hlo_bytes(tensors)


def _get_stablehlo(
    tensors: Tensors, device: str = "", devices: Sequence[str] = (), emit_bytecode: bool = False
) -> bytes:
    """Return the recorded computation of `tensors` as StableHLO: UTF-8 text, or MLIR bytecode."""
    return step.pending_stablehlo_bytecode(tensors) if emit_bytecode else step.pending_stablehlo_text(tensors).encode()


def _get_graph_hash(tensors: Tensors) -> bytes:
    """Return 16 bytes that equal recorded computations share; `_run_cached_graph` finds this computation by them."""
    return step.remember_graph(tensors)


def _get_tensors_xla_device_data_node(
    output_tensors: Tensors, uncloned_tensors: Tensors = ()
) -> tuple[list[int], list[torch.Tensor]]:
    """Return, for each input of the recorded computation of tensors, its `_xla_get_tensor_id` and a tensor of it.

    The Python numbers follow, as CPU tensors without dimensions. Numbers, and values without a tensor, have new ids. No
    input is written to, so `uncloned_tensors` is not used.
    """
    return step.inputs_of_graph(output_tensors)


def _run_cached_graph(graph_hash: bytes, inputs: Tensors) -> list[torch.Tensor]:
    """Run the computation of `_get_graph_hash` on other inputs, in `_get_tensors_xla_device_data_node`'s order.

    Random numbers are drawn again.

    >>> import torch, torch_xla
    >>> from torch_xla import _XLAC
    >>> x = torch.ones(3, device="xla")
    >>> torch_xla.sync()
    >>> y = x * 2
    >>> name, (_, inputs) = _XLAC._get_graph_hash([y]), _XLAC._get_tensors_xla_device_data_node([y])
    >>> _XLAC._run_cached_graph(name, [torch.full((3,), 4.0).to("xla"), *inputs[1:]])[0].tolist()
    [8.0, 8.0, 8.0]
    """
    return step.run_graph(graph_hash, inputs)


def _clear_pending_irs(device: str = "") -> None:
    """Drop the recorded operations of a device. Tensors that they would have written become uninitialised."""
    step.drop_recorded(_tensor.device_named(device or None))


def _get_xla_tensor_debug_info(tensor: torch.Tensor) -> str:
    """Return a description of one tensor as text."""
    return step.describe_pending(tensor)


def _get_xla_tensor_shape_type(tensor: torch.Tensor) -> str:
    """Return XLA's name of the element type: "f32", "s64", "pred"."""
    return step.element_type_name(tensor)


def _set_ir_debug(enabled: bool) -> None:
    """Show or hide the line of your program for each operation in `_get_xla_tensors_text`."""
    step.show_lines_in_text(enabled)


def _get_ir_debug() -> bool:
    """Return whether `_get_xla_tensors_text` shows lines."""
    return step.shows_lines_in_text()


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """Return the identity of a tensor's memory: the same for its views and after writes in place."""
    return transfer.storage_id(step.on_xla(tensor))


def _xla_get_tensor_view_alias_id(tensor: torch.Tensor) -> int:
    """Return `_xla_get_tensor_id`, which views share."""
    return transfer.storage_id(step.on_xla(tensor))


def _check_tensor_need_materialization(tensors: Tensors) -> list[bool]:
    """Return for each tensor whether its value is yet to be computed."""
    return [step.is_pending(tensor) for tensor in tensors]


def _check_device_tensor_need_materialization(device: str = "") -> list[bool]:
    """Return the same for the memory of every living tensor of a device, in no particular order."""
    return step.need_materialisation(_tensor.device_named(device or None))


def _get_tensors_handle(tensors: Tensors) -> list[int]:
    """Compute tensors, and return for each a number of its memory on the device; tensors on one memory share it."""
    return transfer.buffer_handles([step.on_xla(tensor) for tensor in tensors])


def _on_ready_callback(tensor: torch.Tensor, callback: Callable[[], object]) -> None:
    """Start the computation of a tensor; call `callback()` in a separate thread when the value is ready."""
    transfer.call_when_ready(step.on_xla(tensor), callback)


def _xla_warm_up_cache(tensors: Tensors, devices: Sequence[str] = ()) -> None:
    """Compile the program that reading `tensors` would run, and run nothing."""
    transfer.compile_tensors(tensors)


def _set_allow_execution(allowed: bool) -> None:
    """Allow or forbid execution. While it is forbidden, running recorded operations raises `RuntimeError`."""
    diagnostics.allow_evaluation(allowed)


def _get_allow_execution() -> bool:
    """Return whether recorded operations may run."""
    return diagnostics.is_evaluation_allowed()


def _xla_tensors_report(nodes_threshold: int = 100, device: str = "") -> str:
    """Describe the tensors of a device that need many recorded operations, the longest first, with their lines."""
    return diagnostics.pending_tensors_report(_tensor.device_named(device or None), nodes_threshold)


def _unsafe_buffer_pointer(tensor: torch.Tensor) -> int:
    """Compute a tensor and return the address of its memory on the device, valid until the next step ends."""
    return transfer.address_of_tensor(step.on_xla(tensor))


def _xla_sync_multi(
    tensors: Tensors, devices: Sequence[str] = (), wait: bool = True, sync_xla_data: bool = True
) -> None:
    """Compute `tensors`."""
    transfer.compute_tensors(tensors)
    if wait:
        step.wait_for_devices([_tensor.device_named(device) for device in devices])


def _xla_sync_live_tensors(device: str = "", devices: Sequence[str] = (), wait: bool = True) -> None:
    """Compute everything recorded on a device; no closures run."""
    step.start_recorded(_tensor.device_named(device or None), wait)


def _xla_step_marker(
    device: str = "", devices: Sequence[str] = (), wait: bool = True, reset_scope: bool = True
) -> None:
    """End the step of a device; closures stay queued. With `reset_scope`, no named scope may be open."""
    step.mark_step(_tensor.device_named(device or None), wait, reset_scope)


def _xla_wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Wait until everything started so far on these devices has ended; with an empty list, on all devices."""
    step.wait_for_devices([_tensor.device_named(device) for device in devices])


def _xla_get_cpu_tensors(tensors: Tensors) -> list[torch.Tensor]:
    """Copy `tensors` to the CPU in one batch."""
    return transfer.copy_to_host(tensors)


def _xla_tensors_from_aten(
    tensors: Tensors, devices: Sequence[str], shardings: Sequence[XlaShardingSpec | None] | None = None
) -> list[torch.Tensor]:
    """Copy CPU tensors to devices: all to `devices[0]`, or each to the device at its index.

    Under SPMD, only its shard of a tensor with an entry in `shardings` is copied to each device.
    """
    names = [devices[0]] * len(tensors) if len(devices) == 1 else devices
    wanted = shardings or [None] * len(tensors)
    return [
        sharding.uploaded_by_spec(t, _tensor.device_named(name), spec)
        for t, name, spec in zip(tensors, names, wanted, strict=True)
    ]


def _xla_get_default_device() -> str:
    """Return the device of this thread, "xla:0"."""
    return str(_tensor.device_named().torch_device)


def _xla_get_default_device_ordinal() -> int:
    """Return the ordinal of the device of this thread."""
    return devices.current_index()


def _ensure_xla_coordinator_initialized(
    global_rank: int, world_size: int, master_addr: str = "", master_port: str = ""
) -> None:
    """Meet the other processes, if that has not happened. Raises `ValueError` for the place of another process.

    Where they meet was decided when they were started; the address decides nothing.
    """
    place = processes.place_of_process()
    if (global_rank, world_size) != (place.index, place.count):
        raise ValueError(
            f"_ensure_xla_coordinator_initialized(): this is process {place.index} of {place.count}, and not "
            f"{global_rank} of {world_size}. torch_xla.launch, torchrun or init_process_group(rank=..., "
            f"world_size=...) give a process its place"
        )
    processes.connect()


def _xla_set_default_device(device: str) -> str:
    """Make `device` the device of this thread; return the previous one."""
    before = _xla_get_default_device()
    devices.set_current_index(_tensor.device_index_of(device))
    return before


def _xla_get_devices() -> list[str]:
    """Return the devices of this process, `['xla:0']`."""
    return [f"xla:{index}" for index in devices.ordinals()]


def _xla_get_all_devices() -> list[str]:
    """Return the names of the hardware of all processes, `['CPU:0']`."""
    return _tensor.real_device_names()


def _xla_real_devices(devices: Sequence[str] | None = None) -> list[str]:
    """Return the names of the hardware behind `devices`, `['CPU:0']`."""
    return _tensor.real_device_names(devices)


def _xla_num_devices() -> int:
    """Return the number of devices of this process."""
    return devices.device_count()


def _xla_device_kind(device: str) -> str:
    """Return the vendor's name for the model of the hardware."""
    return _tensor.device_named(device).target.kind


def _xla_memory_info(device: str = "") -> dict[str, int]:
    """Return the used bytes, the total bytes, and the peak of used bytes."""
    used = runtime.memory_usage(_tensor.device_named(device or None).target.device)
    return {"bytes_used": used.used, "bytes_limit": used.limit, "peak_bytes_used": used.peak}


def _xla_set_rng_seed(seed: int, device: str = "") -> None:
    """Set the random state of a device."""
    _tensor.set_random_state(seed, _tensor.device_index_of(device or None))


def _xla_get_rng_seed(device: str = "") -> int:
    """Return the random state of a device."""
    return _tensor.random_state_of(_tensor.device_index_of(device or None))


def _init_computation_client() -> None:
    """Start the client, if it does not run."""
    runtime.local_devices()


def _xla_runtime_is_initialized() -> bool:
    """Return whether a client runs."""
    return runtime.is_client_started()


def _xla_get_num_cached_compilation_graph() -> int:
    """Return the number of compiled programs in memory."""
    return program_cache.size()


def _xla_counter_names() -> list[str]:
    """Return the names of the counters that counted something."""
    return metrics.counter_names()


def _xla_counter_value(name: str) -> int | None:
    """Return the value of a counter."""
    return metrics.counter_value(name)


def _xla_increment_counter(name: str, value: int) -> None:
    """Increment a counter."""
    metrics.count(name, value)


def _xla_metric_names() -> list[str]:
    """Return the names of the metrics that have samples."""
    return list(metrics.sampled_metrics())


def _xla_metric_data(name: str) -> tuple[int, float, tuple[tuple[float, float], ...]] | None:
    """Return the data of a metric: the number of samples, their sum, and the latest with their times."""
    data = metrics.metric_data(name)
    return None if data is None else (data.total_samples, data.accumulator, data.samples)


def _xla_metrics_report() -> str:
    """Return all metrics and counters as text."""
    return metrics.full_report()


def _short_xla_metrics_report(counter_names: Sequence[str], metric_names: Sequence[str]) -> str:
    """Return some metrics and counters as text."""
    return metrics.short_report(counter_names, metric_names)


def _clear_xla_counters() -> None:
    """Set all counters to zero."""
    metrics.clear_counters()


def _clear_xla_metrics() -> None:
    """Forget the samples of all metrics."""
    metrics.clear_metrics()


def _get_executed_fallback_ops() -> list[str]:
    """Return the operators that ran on the CPU."""
    return metrics.fallback_names()


def _get_git_revs() -> dict[str, str]:
    """Return the versions of this package and of PyTorch."""
    found: dict[str, str] = {"xla": __version__, "torch": torch.version.git_version}
    return found


def _init_xla_lazy_backend() -> None:
    """Do nothing: operators are registered when the package is imported."""


def _get_base_seed_as_tensor(device: str = "") -> torch.Tensor:
    """Return the random state of a device, as an integer tensor without dimensions on it."""
    found = _tensor.device_named(device or None)
    return torch.tensor(_tensor.random_state_of(found.index), device=found.torch_device)


def _replace_xla_tensor(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Let `target` share the memory, shape and dtype of `source` from now on, and return it.

    >>> import torch, torch_xla
    >>> x, y = torch.zeros(2, device="xla"), torch.ones(3, device="xla")
    >>> torch_xla._XLAC._replace_xla_tensor(x, y).tolist()
    [1.0, 1.0, 1.0]
    """
    step.on_xla(target).data = step.on_xla(source).detach()
    return target


def _get_xla_tensor_dimension_size(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the size of a dimension, as an int32 tensor without dimensions on the device of `tensor`."""
    return torch.tensor(step.on_xla(tensor).size(dim), dtype=torch.int32, device=tensor.device)


def _xla_dot_general(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    dimension_numbers: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]],
    precision_config: str | None = None,
    preferred_element_type: torch.dtype | None = None,
) -> torch.Tensor:
    """Compute XLA's general product, with `dimension_numbers` `((contracted, contracted), (batch, batch))` of lhs, rhs.

    Negative dimensions count from the end. `precision_config` is "default", "high" or "highest";
    `preferred_element_type` is the dtype of the result.

    >>> import torch, torch_xla
    >>> x = torch.ones(2, 3, device="xla")
    >>> torch_xla._XLAC._xla_dot_general(x, x, (((1,), (1,)), ((), ()))).tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    wanted = None if preferred_element_type is None else dtypes.to_jax(preferred_element_type)
    (left, right), (left_batch, right_batch) = dimension_numbers
    numbers = (
        (_dims_of(lhs, left), _dims_of(rhs, right)),
        (_dims_of(lhs, left_batch), _dims_of(rhs, right_batch)),
    )

    chosen = precision_config
    if chosen is None and lhs.dtype in (torch.float32, torch.complex64):
        chosen = _precision.on_platform(runtime.selected_device_type().lower())

    def product(left: jax.Array, right: jax.Array) -> jax.Array:
        return jax.lax.dot_general(left, right, numbers, chosen, wanted)

    result: torch.Tensor = interop.call_jax(product, (step.on_xla(lhs), step.on_xla(rhs)), {}, "dot_general")
    return result


def _dims_of(tensor: torch.Tensor, dims: Sequence[int]) -> tuple[int, ...]:
    """Return dimensions of `tensor` as XLA counts them: from 0."""
    return tuple(dim + tensor.dim() if dim < 0 else dim for dim in dims)
