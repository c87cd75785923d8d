"""Tests that need XLA's compiler for a device that is not here: without it they are skipped, with the command."""

from importlib.util import find_spec

import pytest

needs_tpu_compiler = pytest.mark.skipif(
    find_spec("libtpu") is None, reason="the TPU's compiler is not installed: pip install 'torch_xla[plan-tpu]'"
)
needs_gpu_compiler = pytest.mark.skipif(
    find_spec("jax_cuda12_plugin") is None,
    reason="NVIDIA's compiler is not installed: pip install 'torch_xla[plan-cuda12]'",
)
