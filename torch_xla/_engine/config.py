"""Every environment variable that the engine reads. Frameworks set some late, so each is read when used."""

import os
import re
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

# The variables that are set, where possible as the dictionary that `os` keeps: `os.environ` raises and catches for each
# that is not, which takes a microsecond, and every step asks for three.
_set: Container[bytes] | None = getattr(os.environb, "_data", os.environb) if os.supports_bytes_environ else None

# Whether a variable may be set, by its name in bytes: the question that each step asks without a call of Python.
is_set: Callable[[bytes], bool] = (lambda name: True) if _set is None else _set.__contains__
SYNC_WAIT = b"XLA_SYNC_WAIT"
USE_BF16, DOWNCAST_BF16 = b"XLA_USE_BF16", b"XLA_DOWNCAST_BF16"


def _flag(name: str, default: str = "") -> bool:
    if not default and _set is not None and name.encode() not in _set:
        return False
    return os.environ.get(name, default).strip().lower() not in ("", "0", "false", "no", "off")


def _integer(name: str, default: str, least: int = 0) -> int:
    text = os.environ.get(name, "").strip() or default
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}; it must be a whole number.") from None
    if number < least:
        raise ValueError(f"{name} is {text}; it must be at least {least}.")
    return number


def _number(name: str, default: str, least: float, most: float) -> float:
    text = os.environ.get(name, "").strip() or default
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}; it must be a number.") from None
    if not least <= number <= most:
        raise ValueError(f"{name} is {text}; it must be between {least:g} and {most:g}.")
    return number


def variable(name: str) -> str | None:
    """Return a variable of the user's own, for the public functions that read one by its name."""
    return os.environ.get(name)


def settings() -> dict[str, str]:
    """Return the variables that are set and that we, JAX or XLA may read, for reports."""
    prefixes = ("XLA_", "PT_XLA_", "PJRT_", "XRT_", "JAX_", "TPU_", "LIBTPU_", "CUDA_VISIBLE_", "CPU_NUM_", "GPU_NUM_")
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)}


def pjrt_device() -> str:
    """PJRT_DEVICE: "CPU", "CUDA", "TPU" or a plugin's name; empty means JAX's own choice."""
    return os.environ.get("PJRT_DEVICE", "").strip().upper()


def dynamic_plugins() -> bool:
    """PJRT_DYNAMIC_PLUGINS: plugins are asked for, as by `torch_xla.experimental.plugins.use_dynamic_plugins()`."""
    return _flag("PJRT_DYNAMIC_PLUGINS")


def cpu_num_devices() -> int:
    """CPU_NUM_DEVICES: how many virtual CPU devices this process has; 0 leaves it to JAX."""
    return _integer("CPU_NUM_DEVICES", "0")


def use_spmd() -> bool:
    """XLA_USE_SPMD: `xla:0` represents all devices, as after `torch_xla.runtime.use_spmd()`."""
    return _flag("XLA_USE_SPMD")


def set_use_spmd() -> None:
    """Set XLA_USE_SPMD, which scripts read and the processes that this one starts inherit."""
    os.environ.update(XLA_USE_SPMD="1")


def auto_spmd() -> bool:
    """XLA_AUTO_SPMD: layouts are looked for, as after `torch_xla.runtime.use_spmd(auto=True)`."""
    return _flag("XLA_AUTO_SPMD")


def auto_spmd_mesh() -> tuple[int, ...]:
    """XLA_AUTO_SPMD_MESH: the shape of the mesh for which they are looked for, such as "2,2"; empty: chosen."""
    text = os.environ.get("XLA_AUTO_SPMD_MESH", "").strip()
    sides = [side.strip() for side in text.split(",")] if text else []
    if not all(side.isdecimal() and int(side) for side in sides):
        raise ValueError(f"XLA_AUTO_SPMD_MESH is {text!r}; it must be the sides of a mesh, as 2,2.")
    return tuple(map(int, sides))


def auto_use_group_sharding() -> bool:
    """XLA_AUTO_USE_GROUP_SHARDING: parameters of one name but for its numbers are divided alike."""
    return _flag("XLA_AUTO_USE_GROUP_SHARDING", "1")


def auto_spmd_compilations() -> int:
    """XLA_AUTO_SPMD_COMPILATIONS: the number of layouts that each search compiles."""
    return _integer("XLA_AUTO_SPMD_COMPILATIONS", "40", 1)


def forced_host_devices() -> int:
    """XLA_FLAGS: how many virtual CPU devices `--xla_force_host_platform_device_count` asks for; 0 if it does not."""
    found = re.findall(r"--xla_force_host_platform_device_count=(\d+)", xla_flags())
    return int(found[-1]) if found else 0


class Torchrun(NamedTuple):
    """The variables that `torchrun` sets for a process."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node: int
    master_address: str


def torchrun() -> Torchrun | None:
    """TORCHELASTIC_RUN_ID says that `torchrun` started this process, and RANK and its kin as which one; else `None`."""
    if not os.environ.get("TORCHELASTIC_RUN_ID"):
        return None
    return Torchrun(
        _integer("RANK", "0"),
        _integer("WORLD_SIZE", "1"),
        _integer("LOCAL_RANK", "0"),
        _integer("LOCAL_WORLD_SIZE", "1"),
        _integer("GROUP_RANK", "0"),
        master_address(),
    )


def torchrun_folder() -> Path | None:
    """TORCHELASTIC_ERROR_FILE: a file that this process may write, in `attempt_N/LOCAL_RANK/`.

    Returns the folder above: `torchrun` keeps it for all attempts.
    """
    parents = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", "")).parents
    return parents[2] if len(parents) > 2 and parents[1].name.startswith("attempt_") else None


def restart_count() -> int:
    """TORCHELASTIC_RESTART_COUNT, SLURM_RESTART_COUNT: how often `torchrun` or Slurm has started this process again."""
    return _integer("TORCHELASTIC_RESTART_COUNT", "0") + _integer("SLURM_RESTART_COUNT", "0")


def master_address() -> str:
    """MASTER_ADDR: the machine that runs process 0."""
    found = os.environ.get("MASTER_ADDR", "127.0.0.1").strip()
    return "127.0.0.1" if found == "localhost" else found


def coordinator_port() -> int:
    """XLA_COORDINATOR_PORT: where process 0 listens for the others; 0 takes a free port."""
    return _integer("XLA_COORDINATOR_PORT", "0")


def mutual_tls() -> list[str]:
    """JAX_MTLS_CERT_FILE and its kin: which of JAX's variables of mutual TLS are set. JAX 0.12 reads them itself."""
    names = (
        "JAX_MTLS_CERT_FILE", "JAX_MTLS_KEY_FILE", "JAX_MTLS_CA_FILE", "JAX_MTLS_PEER_URI_PREFIX",
        "JAX_DISTRIBUTED_VERIFY_SECURE_CREDENTIALS",
    )  # fmt: skip
    return [name for name in names if os.environ.get(name)]


def flight_recorder_file() -> str:
    """TORCH_FR_DUMP_TEMP_FILE: where the flight recorder writes, without the number of the process at the end."""
    return os.environ.get("TORCH_FR_DUMP_TEMP_FILE", "").strip()


def heartbeat_seconds() -> int:
    """DIST_SERVICE_HEARTBEAT_INTERVAL_IN_SEC: a process that is silent for so long is lost."""
    return max(1, _integer("DIST_SERVICE_HEARTBEAT_INTERVAL_IN_SEC", "20"))


def distributed_start_seconds() -> int:
    """DIST_SERVICE_START_TIMEOUT_IN_SEC: how long processes wait for each other to start."""
    return max(1, _integer("DIST_SERVICE_START_TIMEOUT_IN_SEC", "300"))


def rendezvous_seconds() -> int:
    """XLA_RENDEZVOUS_TIMEOUT: how long a process waits for the others at a rendezvous, in seconds."""
    return max(1, _integer("XLA_RENDEZVOUS_TIMEOUT", "600"))


def collective_seconds() -> int:
    """XLA_COLLECTIVE_TIMEOUT: how long a process waits in a collective for one that does not come, in seconds."""
    return max(1, _integer("XLA_COLLECTIVE_TIMEOUT", "600"))


def gradient_bucket_mebibytes() -> int:
    """ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB: gradients are reduced in parts of this size in MiB; 0: all at once."""
    return _integer("ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB", "0")


def gpu_num_devices() -> int:
    """GPU_NUM_DEVICES: how many GPUs of this machine the program uses; 0: all that are visible."""
    return _integer("GPU_NUM_DEVICES", "0")


def visible_gpus() -> list[str] | None:
    """CUDA_VISIBLE_DEVICES: the GPUs that programs may see; `None`: all."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if text is None else [name for name in text.split(",") if name.strip() and name.strip() != "-1"]


def visible_tpu_chips() -> list[str] | None:
    """TPU_VISIBLE_CHIPS: the chips that programs may see; `None`: all."""
    text = os.environ.get("TPU_VISIBLE_CHIPS")
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def tpu_processes_are_arranged() -> bool:
    """TPU_PROCESS_BOUNDS: whether the processes that share TPU chips are already arranged."""
    return "TPU_PROCESS_BOUNDS" in os.environ


def set_libtpu_variables(variables: dict[str, str]) -> None:
    """Set the variables that libtpu reads when its client starts."""
    os.environ.update(variables)


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Give these variables these values within a `with` block."""
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ.update(before)


def defaults_set(variables: Mapping[str, str]) -> AbstractContextManager[None]:
    """Give these variables these values within a `with` block, unless the user has set them."""
    return variables_set({name: value for name, value in variables.items() if name not in os.environ})


def xla_flags() -> str:
    """XLA_FLAGS: options of XLA."""
    return os.environ.get("XLA_FLAGS", "")


def keep_host_memory() -> bool:
    """XLA_KEEP_HOST_MEMORY: what CPU programs free stays with the process, if nothing else sets glibc's allocator."""
    theirs = any(name.startswith("MALLOC_") for name in os.environ)
    return (
        _flag("XLA_KEEP_HOST_MEMORY", "1") and not theirs and "glibc.malloc" not in os.environ.get("GLIBC_TUNABLES", "")
    )


def use_bf16() -> bool:
    """XLA_USE_BF16: float32 and float64 values live on the device as bfloat16."""
    return _flag("XLA_USE_BF16")


def downcast_bf16() -> bool:
    """XLA_DOWNCAST_BF16: float32 lives on the device as bfloat16 and float64 as float32."""
    return _flag("XLA_DOWNCAST_BF16")


def find_nan() -> str:
    """XLA_FIND_NAN: every step is searched for the first NaN; "inf" looks for inf too. Empty: off."""
    value = os.environ.get("XLA_FIND_NAN", "").strip().lower()
    return value if _flag("XLA_FIND_NAN") else ""


def check_values() -> bool:
    """XLA_CHECK_VALUES: values that an operator cannot take, as indices out of range, are looked for and raise."""
    return _flag("XLA_CHECK_VALUES")


def dynamo_debug() -> bool:
    """XLA_DYNAMO_DEBUG: what becomes of every graph of `torch.compile` is logged."""
    return _flag("XLA_DYNAMO_DEBUG")


def eager_debug_mode() -> bool:
    """XLA_USE_EAGER_DEBUG_MODE: eager mode is on from the import on."""
    return _flag("XLA_USE_EAGER_DEBUG_MODE")


def sync_wait() -> bool:
    """XLA_SYNC_WAIT: every `sync()` waits for the device."""
    return _flag("XLA_SYNC_WAIT")


def check() -> bool:
    """XLA_CHECK: verify every graph before it is lowered."""
    return _flag("XLA_CHECK")


def compilation_cache_size() -> int:
    """XLA_COMPILATION_CACHE_SIZE: how many programs stay in memory."""
    return _integer("XLA_COMPILATION_CACHE_SIZE", "2048", least=1)


def stage_operations() -> int:
    """XLA_STAGE_OPERATIONS: a program is compiled in stages if this saves that many operations; 0: never."""
    return _integer("XLA_STAGE_OPERATIONS", "500")


def stage_operations_on_tpu() -> int:
    """XLA_STAGE_OPERATIONS: the same for a TPU, which takes longer for programs in stages.

    It copies what passes between them to the layout of arguments.
    """
    return _integer("XLA_STAGE_OPERATIONS", "0")


def max_async_closures() -> int:
    """XLA_MAX_ASYNC_QUEUE: how many asynchronous step closures may wait."""
    return _integer("XLA_MAX_ASYNC_QUEUE", "100")


def metrics_samples() -> int:
    """XLA_METRICS_SAMPLES: how many of its latest samples a metric keeps."""
    return _integer("XLA_METRICS_SAMPLES", "1024", least=1)


def metrics_percentiles() -> tuple[float, ...]:
    """XLA_METRICS_PERCENTILES: the percentiles of the metrics report, as fractions between colons."""
    text = os.environ.get("XLA_METRICS_PERCENTILES", "0.01:0.05:0.1:0.2:0.5:0.8:0.9:0.95:0.99")
    try:
        percentiles = tuple(float(part) for part in text.split(":"))
    except ValueError:
        percentiles = (-1.0,)
    if not all(0 <= p <= 1 for p in percentiles):
        raise ValueError(f"XLA_METRICS_PERCENTILES is {text!r}; it must be fractions, such as '0.1:0.5:0.9'.")
    return percentiles


def history() -> bool:
    """XLA_HISTORY: the history for `torch_xla.debug` is kept from the import on, unless this is off."""
    return _flag("XLA_HISTORY", "1")


def checks_memory() -> bool:
    """XLA_CHECK_MEMORY: a program for which the device has no room is refused before its first run, unless off."""
    return _flag("XLA_CHECK_MEMORY", "1")


def debug_level() -> int:
    """PT_XLA_DEBUG_LEVEL: 1 explains compilations, 2 executions too; PT_XLA_DEBUG asks for all there is. 0: off."""
    if _flag("PT_XLA_DEBUG"):
        return 100
    return _integer("PT_XLA_DEBUG_LEVEL", "0")


def debug_file() -> str:
    """PT_XLA_DEBUG_FILE: where these explanations go instead of the standard error."""
    return os.environ.get("PT_XLA_DEBUG_FILE", "")


def debug_max_frames() -> int:
    """PT_XLA_DEBUG_MAX_FRAME: how many Python frames an explanation shows."""
    return _integer("PT_XLA_DEBUG_MAX_FRAME", "8", least=1)


def ir_debug() -> bool:
    """XLA_IR_DEBUG: listings of graphs contain the user's lines."""
    return _flag("XLA_IR_DEBUG")


def hlo_debug() -> bool:
    """XLA_HLO_DEBUG: StableHLO and HLO contain the user's lines."""
    return _flag("XLA_HLO_DEBUG")


def save_tensors_file() -> str:
    """XLA_SAVE_TENSORS_FILE: every graph that runs is appended to this file."""
    return os.environ.get("XLA_SAVE_TENSORS_FILE", "")


def save_tensors_format() -> str:
    """XLA_SAVE_TENSORS_FMT: the language of XLA_SAVE_TENSORS_FILE."""
    return os.environ.get("XLA_SAVE_TENSORS_FMT", "text") or "text"


def dump_post_optimizations() -> bool:
    """XLA_DUMP_POST_OPTIMIZATIONS: HLO in XLA_SAVE_TENSORS_FILE is what XLA made of it."""
    return _flag("XLA_DUMP_POST_OPTIMIZATIONS")


def save_hlo_file() -> str:
    """XLA_SAVE_HLO_FILE: where the HLO of a program goes that could not be compiled or failed."""
    return os.environ.get("XLA_SAVE_HLO_FILE", "")


def dump_hlo_graph() -> bool:
    """XLA_DUMP_HLO_GRAPH: the error of such a program contains its HLO."""
    return _flag("XLA_DUMP_HLO_GRAPH")


def metrics_file() -> str:
    """XLA_METRICS_FILE: the metrics report is appended to this file at every step."""
    return os.environ.get("XLA_METRICS_FILE", "")


def emit_step_log() -> bool:
    """XLA_EMIT_STEPLOG: each step writes a line to the standard error."""
    return _flag("XLA_EMIT_STEPLOG")


def dump_fatal_stack() -> bool:
    """XLA_DUMP_FATAL_STACK: a crash of the process shows the Python frames of its threads."""
    return _flag("XLA_DUMP_FATAL_STACK")


def rate_tracker_smoothing() -> float:
    """RATE_TRACKER_SMOOTHING: how much of its last reading a `RateTracker` keeps, if its maker does not say."""
    return _number("RATE_TRACKER_SMOOTHING", "0.4", 0, 1)


def save_graph_format() -> str:
    """SAVE_GRAPH_FMT: the language of `save_tensors_graph`."""
    return os.environ.get("SAVE_GRAPH_FMT", "text") or "text"


def comparison_directory() -> str:
    """MODELCMP_SAVEDIR: where the model comparator saves tensors."""
    return os.environ.get("MODELCMP_SAVEDIR", "")


def persistent_cache_path() -> str:
    """XLA_PERSISTENT_CACHE_PATH: the folder or address of executables; empty means that none are kept."""
    default = _cache_folder()
    path = os.environ.get("XLA_PERSISTENT_CACHE_PATH", default)
    expanded = os.path.expanduser(path)
    if expanded.startswith("~") and path != default:
        raise ValueError(f"XLA_PERSISTENT_CACHE_PATH is {path!r}, and there is no such user here; give a whole path.")
    return "" if expanded.startswith("~") else expanded  # a user without a home has no such folder


def _cache_folder() -> str:
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "torch_xla")


def own_cache_folder() -> str:
    """XDG_CACHE_HOME: the folder of this user's caches, with our part of it; empty where a user has no home."""
    expanded = os.path.expanduser(_cache_folder())
    return "" if expanded.startswith("~") else expanded


def persistent_cache_key() -> str:
    """XLA_PERSISTENT_CACHE_KEY: the file with which executables on disk are signed; empty where a user has no home."""
    default = os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.join("~", ".config"), "torch_xla", "cache.key")
    path = os.path.expanduser(os.environ.get("XLA_PERSISTENT_CACHE_KEY") or default)
    return "" if path.startswith("~") else path


def persistent_cache_read_only() -> bool:
    """XLA_PERSISTENT_CACHE_READ_ONLY: executables are read from that folder and not written to it."""
    return _flag("XLA_PERSISTENT_CACHE_READ_ONLY")


def persistent_cache_bytes() -> int:
    """XLA_PERSISTENT_CACHE_SIZE: how much that folder may hold, given in MiB."""
    text = os.environ.get("XLA_PERSISTENT_CACHE_SIZE", "").strip() or "2048"
    try:
        size = float(text)
    except ValueError:
        size = -1.0
    if not 0 <= size < 2**43:
        raise ValueError(f"XLA_PERSISTENT_CACHE_SIZE is {text!r}; it must be a number of MiB, 0 or more.")
    return int(size * 2**20)


def tracker_file() -> str:
    """XLA_FNTRACKER_FILE: each read of a value is appended to this file, with its place."""
    return os.environ.get("XLA_FNTRACKER_FILE", "")


def refuse_nonsense() -> None:
    """Raise `ValueError` for an invalid value of a setting, before a program has begun to compute."""
    for setting in (
        cpu_num_devices, compilation_cache_size, stage_operations, max_async_closures, metrics_samples,
        metrics_percentiles, debug_level, debug_max_frames, rate_tracker_smoothing, persistent_cache_path,
        persistent_cache_bytes,
    ):  # fmt: skip
        setting()
