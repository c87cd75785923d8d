"""Names of `torch.cuda` and `torch.xpu` that `torch.xla` lacks, each with the reason and what to use."""

from collections.abc import Callable

_ALLOCATOR = (
    "PJRT allocates the memory, and no other code can. XLA_PYTHON_CLIENT_PREALLOCATE and "
    "XLA_PYTHON_CLIENT_ALLOCATOR choose how, on a GPU, before Python starts"
)
_FRACTION = "PJRT reads this once, before the client starts: set XLA_PYTHON_CLIENT_MEM_FRACTION before Python starts"
_STREAMS = "a device has one stream, PJRT's. torch.xla.current_stream() is that"
_GRAPHS = (
    "a graph of xla is a torch.xla.XLAGraph, whose debug_dump(file) writes StableHLO. torch.accelerator.Graph makes a "
    "graph on each accelerator"
)
_SENSORS = "PJRT does not read the sensors of a device. Ask the tool of its maker (nvidia-smi, tpu-info)"
_TYPES = "classes of tensors by device are deprecated in PyTorch. Write torch.tensor(..., dtype=..., device='xla')"
_STORAGES = "classes of storages by dtype are deprecated in PyTorch. Use tensor.untyped_storage()"
_LIBRARY = "it belongs to a library of CUDA, which XLA calls by itself"
_CODE = "XLA compiles for the device that it finds; torch.xla.get_device_name() names it"
_PINNED = "PJRT reads any memory of the host, so no pinned memory is kept to be counted"

_DTYPES = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")

REASONS: dict[str, str] = {
    **dict.fromkeys((f"{name}Tensor" for name in _DTYPES), _TYPES),
    **dict.fromkeys((f"{name}Storage" for name in (*_DTYPES, "ComplexDouble", "ComplexFloat")), _STORAGES),
    **dict.fromkeys(
        (
            "CUDAPluggableAllocator", "XPUPluggableAllocator", "MemPool", "caching_allocator_alloc",
            "caching_allocator_delete", "caching_allocator_disabled", "caching_allocator_enable",
            "change_current_allocator", "get_allocator_backend", "use_mem_pool",
        ),
        _ALLOCATOR,
    ),
    **dict.fromkeys(("get_per_process_memory_fraction", "set_per_process_memory_fraction"), _FRACTION),
    **dict.fromkeys(("ExternalStream", "get_stream_from_external", "GreenContext"), _STREAMS),
    **dict.fromkeys(("CUDAGraph", "XPUGraph", "export_dot", "export_graph_data", "graph_annotations"), _GRAPHS),
    **dict.fromkeys(
        ("clock_rate", "list_gpu_processes", "memory_usage", "power_draw", "temperature", "utilization"), _SENSORS
    ),
    **dict.fromkeys(
        (
            "CudaError", "DeferredCudaCallError", "check_error", "cudaStatus", "cudart", "current_blas_handle",
            "current_solver_handle", "has_magma", "sparse", "tunable",
        ),
        _LIBRARY,
    ),
    **dict.fromkeys(("get_arch_list", "get_gencode_flags"), _CODE),
    **dict.fromkeys(
        (
            "host_memory_stats", "host_memory_stats_as_nested_dict", "reset_accumulated_host_memory_stats",
            "reset_peak_host_memory_stats",
        ),
        _PINNED,
    ),
    **dict.fromkeys(
        ("get_sync_debug_mode", "set_sync_debug_mode"),
        "torch_xla.debug.no_transfer() refuses what makes the host wait; torch_xla.debug.sync_tax() names the lines",
    ),
    "can_device_access_peer": "PJRT chooses how to copy between the devices of a process. Copy by .to()",
    "jiterator": "functions of elements are compiled by XLA: write them in PyTorch, or in Pallas (docs/kernels.md)",
    "nccl": "XLA calls it by itself. torch.distributed with the backend 'xla' has the collectives",
    "nvtx": "spans are named by torch_xla.debug.profiler.Trace(name)",
    "profiler": "profiles are taken by torch.profiler, and torch_xla.debug.profiler",
}  # fmt: skip


def refusing(module: str) -> Callable[[str], object]:
    """Return the `__getattr__` of a module: an `AttributeError` that says why a name is not there, and what to use."""

    def __getattr__(name: str) -> object:
        reason = REASONS.get(name)
        if reason is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
        raise AttributeError(f"{module}.{name} does not exist: {reason}.", name=name)

    return __getattr__
