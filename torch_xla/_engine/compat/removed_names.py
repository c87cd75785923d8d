"""Names of PyTorch/XLA 2 that this package lacks, each with the reason and what to write instead."""

from collections.abc import Callable
from typing import Any

_BRIDGE = (
    "it belongs to the steps in which PyTorch/XLA 2 turned an FX graph into one with a hash; here the graph becomes "
    "one operation. Use extract_compiled_graph, or torch.compile(backend='openxla')"
)
_TOPOLOGY = (
    "libtpu finds how chips are connected, by the TPU_* variables that are set when Python starts or that a process "
    "of torch_xla.launch sets for its chip. torch_xla.runtime has what a program asks: global_device_count(), "
    "addressable_device_count(), host_index(), get_master_ip()"
)
_STARTED = (
    "a process learns its place from its launcher. Start processes by torch_xla.launch or torchrun, or give "
    "rank and world_size to torch.distributed.init_process_group('xla')"
)

REASONS: dict[str, dict[str, str]] = {
    "torch_xla._XLAC": {
        "_get_xla_op_sharding_v2_params": (
            "an OpSharding has one form, the list of devices. Use Mesh.get_op_sharding, or _get_xla_op_sharding"
        ),
    },
    "torch_xla._XLAC.profiler": {
        "TslProfilerSessionWrapper": (
            "a profile is written when it ends. Use torch_xla.debug.profiler.start_trace(folder) and stop_trace()"
        ),
    },
    "torch_xla._dynamo.dynamo_bridge": dict.fromkeys(
        (
            "SpecialReturnHandler", "extract_graph_helper", "extract_internal", "InputCollector",
            "XLAConstructorMoverPass", "partition_fx_graph_for_cpu_fallback",
        ),
        _BRIDGE,
    ),
    "torch_xla._internal.pjrt": {
        "initialize_multiprocess": _STARTED,
        "initialize_singleprocess": _STARTED,
        "spawn_threads": (
            "a program that exchanges values has a process for each device, and no thread of one is a replica. Use "
            "torch_xla.launch, or threads of your own that each use another torch_xla.device(n)"
        ),
    },
    "torch_xla._internal.rendezvous": {
        "DummyStore": "it kept nothing. torch.distributed.HashStore is a store for a process that is alone",
    },
    "torch_xla._internal.tpu": {
        **dict.fromkeys(
            (
                "TpuEnv", "MeshShape", "process_bounds_size", "build_tpu_env_from_vars", "get_worker_ips",
                "num_tpu_workers", "configure_one_chip_topology", "configure_topology",
            ),
            _TOPOLOGY,
        ),
        "TpuPlugin": (
            "JAX brings the plugin of TPUs (pip install 'torch_xla[tpu]'), and PJRT_DEVICE=TPU chooses it. Plugins of "
            "your own are made of torch_xla.experimental.plugins.DevicePlugin"
        ),
    },
    "torch_xla.core.xla_builder": dict.fromkeys(
        ("FlattenedInputFunc", "CompiledCallableWithCache", "JaxFlattenedInputFunc"),
        "nested arguments are taken apart, and what was built is kept, where a computation is called. Use call_jax "
        "for a function of JAX and XlaCallable for one of builder operations",
    ),
    "torch_xla.core.xla_model": {
        "DeviceContext": "closures of a step are kept by the engine. Use add_step_closure",
    },
    "torch_xla.experimental.custom_kernel": dict.fromkeys(
        ("non_xla_attetion", "non_xla_ragged_paged_attention"),
        "it warned, and gave a result without values, for tensors on other devices. The operators of torch.ops.xla "
        "compute the same on the CPU",
    ),
    "torch_xla.distributed.xla_multiprocessing": {
        "device_kind_handler_dict": (
            "the order of the processes in a collective is XLA's, for every kind of device. Give groups to the "
            "collectives of torch_xla.core.xla_model where you need some"
        ),
    },
    "torch_xla.experimental.assume_pure": {
        "prepare_computation_inputs": (
            "it matched tensors with the parameters of a computation of its own. assume_pure does so itself"
        ),
    },
    "torch_xla.experimental.scan": {
        "Scan": (
            "it is one half of a scan in PyTorch/XLA 2. Use scan(..., partition_fn=...), which is "
            "differentiated as a whole"
        ),
    },
    "torch_xla.stablehlo": {
        "XLAExportInterpreter": (
            "it ran a graph on the device to record it. exported_program_to_stablehlo lowers the graph without that"
        ),
    },
    "torch_xla.utils.checkpoint": dict.fromkeys(
        ("CheckpointStatus", "chkpt_status"),
        "the state of a checkpoint is kept by PyTorch's own. Use torch_xla.utils.checkpoint.checkpoint, or "
        "torch.utils.checkpoint.checkpoint",
    ),
}  # fmt: skip


def asked_of(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module: an `AttributeError` that says why a name is not there, and what to use."""
    reasons = REASONS[module]

    def __getattr__(name: str) -> Any:
        reason = reasons.get(name)
        if reason is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise AttributeError(f"{module}.{name} is not in this version of torch_xla: {reason}.", name=name)

    return __getattr__
