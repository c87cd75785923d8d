"""Tests for a device that is not here.

Those that need XLA's compiler for it are skipped without it, with the command. Values of the forms that a TPU gets can
be computed on the CPU too.
"""

from importlib.util import find_spec
from typing import Any

import jax
import pytest

needs_tpu_compiler = pytest.mark.skipif(
    find_spec("libtpu") is None, reason="the TPU's compiler is not installed: pip install 'torch_xla[plan-tpu]'"
)
needs_gpu_compiler = pytest.mark.skipif(
    find_spec("jax_cuda12_plugin") is None,
    reason="NVIDIA's compiler is not installed: pip install 'torch_xla[plan-cuda12]'",
)


@pytest.fixture
def forms_of_a_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rules take the forms that a TPU gets, where they choose by the platform. The CPU computes them."""

    def chosen(*operands: Any, **forms: Any) -> Any:
        return forms.get("tpu", forms.get("default"))(*operands)

    monkeypatch.setattr(jax.lax, "platform_dependent", chosen)
