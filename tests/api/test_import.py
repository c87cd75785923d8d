"""Importing the package makes the device exist and does nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `program` in a Python of its own, in which every warning is an error."""
    clean = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, env=clean, capture_output=True, text=True
    )


def test_the_plain_import_binds_what_frameworks_expect_and_starts_prints_and_warns_about_nothing() -> None:
    # The import leaves a disabled collector disabled; tests/api/test_unused.py has an enabled one.
    result = python(
        "import gc\n"
        "gc.disable()\n"
        "import torch_xla\n"
        "assert not gc.isenabled()\n"
        "gc.enable()\n"
        "torch_xla.runtime.device_type, torch_xla.debug.metrics.metrics_report, torch_xla._XLAC._xla_get_tensor_id\n"
        "assert torch_xla.version.__version__ == torch_xla.__version__\n"
        "import _XLAC\n"
        "assert _XLAC is torch_xla._XLAC\n"
        "import torch, jax\n"
        "import torch_xla.core.xla_model as xm, torch_xla.core.functions, torch_xla.core.xla_env_vars\n"
        "import torch_xla._internal.tpu, torch_xla.experimental.tpu, torch_xla.experimental.pjrt\n"
        "device = torch_xla.device()\n"
        "xm.set_rng_state(3); torch_xla.manual_seed(4); xm.get_rng_state()\n"
        "torch_xla.runtime.device_type(); torch_xla.runtime.world_size(); torch_xla.runtime.global_ordinal()\n"
        "xm.is_master_ordinal(); xm.rendezvous('here')\n"
        "for _ in range(300): xm.mark_step(); torch_xla.sync()\n"
        "x = torch.ones(3, device=device) + 1\n"
        "assert not torch_xla._XLAC._xla_runtime_is_initialized()\n"
        "assert not jax._src.xla_bridge._backends\n"
    )
    assert (result.stdout, result.stderr, result.returncode) == ("", "", 0)


@pytest.mark.slow
def test_a_package_that_already_has_the_device_is_named_in_an_import_error() -> None:
    result = python(
        "import torch\n"
        "torch.utils.rename_privateuse1_backend('tpu')\n"
        "try:\n"
        "    import torch_xla\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    assert "another package already uses it for 'tpu'" in result.stdout
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in result.stdout


@pytest.mark.slow
def test_whatever_does_not_fit_is_an_import_error() -> None:
    result = python(
        "import torch\n"
        "del torch._C._acc.create_empty_tensor\n"
        "try:\n"
        "    import torch_xla\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    assert result.stdout.startswith("torch_xla 3.")
    assert f"does not work with torch {result.stdout.split('torch ')[1].split(' ')[0]}" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting, what",
    [
        ({"XLA_METRICS_SAMPLES": "many"}, "XLA_METRICS_SAMPLES is 'many'; it must be a whole number."),
        (
            {"XLA_SAVE_TENSORS_FILE": "x", "XLA_SAVE_TENSORS_FMT": "word"},
            "XLA_SAVE_TENSORS_FMT is 'word'; it must be one of text, dot, hlo, stablehlo",
        ),
    ],
)
def test_a_setting_that_cannot_be_read_is_named(setting: dict[str, str], what: str) -> None:
    result = python("try:\n    import torch_xla\nexcept ImportError as error:\n    print(error)\n", **setting)
    assert f"cannot start: {what} (`python -m torch_xla.doctor`)" in result.stdout


@pytest.mark.slow
def test_what_is_chosen_noted_reloaded_or_imported_twice_after_the_import() -> None:
    # Code that saves the autocast default before the first use, and restores it afterwards, must not restore float16.
    result = python(
        "import importlib, sys, torch, torch_xla, torch_xla.runtime as xr\n"
        "xr.set_device_type('CPU')\n"
        "print(xr.device_type(), torch_xla.real_devices()[0], xr.device_type())\n"
        "before = torch.get_autocast_dtype('xla')\n"
        "with torch.autocast('xla'): pass\n"
        "torch.set_autocast_dtype('xla', before)\n"
        "with torch.autocast('xla'):\n"
        "    print((torch.ones(2, 2, device='xla') @ torch.ones(2, 2, device='xla')).dtype)\n"
        "x = torch.ones(2, device='xla')\n"
        "assert importlib.reload(torch_xla) is torch_xla\n"
        "torch_xla.sync()\n"
        "print((x + 1).tolist(), torch_xla.device())\n"
        "for name in [name for name in sys.modules if name.partition('.')[0] == 'torch_xla']:\n"
        "    del sys.modules[name]\n"
        "try:\n"
        "    import torch_xla\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    chosen, narrow, reloaded, *refused = result.stdout.splitlines()
    assert (chosen, narrow, reloaded) == ("CPU CPU:0 CPU", "torch.bfloat16", "[2.0, 2.0] xla:0"), result.stderr
    assert refused[0].startswith("torch_xla was imported in this process before"), result.stderr


@pytest.mark.slow
def test_the_platform_is_told_without_a_client_and_an_exit_handler_may_be_the_first_to_compile() -> None:
    result = python(
        "import atexit, torch, torch_xla\n"
        "print(torch_xla.runtime.device_type(), torch_xla._XLAC._xla_runtime_is_initialized())\n"
        "class Late:\n"
        "    def __init__(self):\n"
        "        self.x = torch.ones(2, device='xla')\n"
        "    def __del__(self):\n"
        "        (self.x * 3 + 1).tolist()\n"
        "x, late = torch.ones(2, device='xla'), Late()\n"
        "atexit.register(lambda: print((x * 5).tolist()))\n",
        PJRT_DEVICE="cpu",
    )
    assert result.stdout == "CPU False\n[5.0, 5.0]\n", result.stderr
    # PyTorch and Python have already removed objects that the last finalizers need, so these fail, and nothing else
    # does.
    assert result.returncode == 0, result.stderr
    assert "ending" in result.stderr or "shutting down" in result.stderr, result.stderr
