"""Describe GPUs to XLA, so that it compiles for them on a machine without one.

The text is XLA's `GpuTargetConfigProto`. XLA takes a missing field for zero, which fails late, so all are given.
"""

_TEXT = """
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {core_memory}
  threads_per_core_limit: 2048
  core_count: {cores}
  fpus_per_core: {units}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}
  l2_cache_size: {cache}
  clock_rate_ghz: {clock}
  device_memory_size: {memory}
  shared_memory_per_block_optin: {block_memory}
  cuda_compute_capability {{ major: {major} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{name}"
"""


def _text(name: str, major: int, cores: int, units: int, memory: int, bandwidth: int, cache: int, clock: float) -> str:
    # Of the memory of a core, one KiB is the system's.
    core_memory = {8: 164, 9: 228}[major] << 10
    return _TEXT.format(
        name=name,
        major=major,
        cores=cores,
        units=units,
        memory=memory,
        bandwidth=bandwidth,
        cache=cache << 20,
        clock=clock,
        core_memory=core_memory,
        block_memory=core_memory - 1024,
    )


# By the name of a topology: the memory is what CUDA reports, which is less than what is on the card.
TEXTS = {
    "a100": _text("NVIDIA A100-SXM4-80GB", 8, 108, 64, 84_974_239_744, 2_039_000_000_000, 40, 1.41),
    "h100": _text("NVIDIA H100 80GB HBM3", 9, 132, 128, 84_942_979_072, 3_352_320_000_000, 50, 1.98),
    "h200": _text("NVIDIA H200", 9, 132, 128, 150_110_011_392, 4_800_000_000_000, 50, 1.98),
}
