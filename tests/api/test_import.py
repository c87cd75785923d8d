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
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, env=clean, capture_output=True, text=True, timeout=120
    )


def test_the_import_prints_nothing_warns_about_nothing_and_starts_no_client() -> None:
    result = python(
        "import torch_xla, torch, jax\n"
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


def test_the_plain_import_binds_what_frameworks_expect() -> None:
    result = python(
        "import torch_xla\n"
        "torch_xla.runtime.device_type, torch_xla.debug.metrics.metrics_report, torch_xla._XLAC._xla_get_tensor_id\n"
        "assert torch_xla.version.__version__ == torch_xla.__version__\n"
        "import _XLAC\n"
        "assert _XLAC is torch_xla._XLAC\n"
    )
    assert (result.stderr, result.returncode) == ("", 0)


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


def test_the_platform_of_the_environment_is_told_without_a_client() -> None:
    result = python(
        "import torch_xla\nprint(torch_xla.runtime.device_type(), torch_xla._XLAC._xla_runtime_is_initialized())\n",
        PJRT_DEVICE="cpu",
    )
    assert result.stdout == "CPU False\n", result.stderr


def test_the_platform_chosen_is_the_one_used() -> None:
    result = python(
        "import torch_xla, torch_xla.runtime as xr\n"
        "xr.set_device_type('CPU')\n"
        "print(xr.device_type(), torch_xla.real_devices()[0], xr.device_type())\n"
    )
    assert result.stdout == "CPU CPU:0 CPU\n", result.stderr


def test_the_default_of_autocast_is_there_from_the_start() -> None:
    # Whoever notes it before the first `torch.autocast` and restores it afterwards must not restore PyTorch's float16.
    result = python(
        "import torch, torch_xla\n"
        "before = torch.get_autocast_dtype('xla')\n"
        "with torch.autocast('xla'): pass\n"
        "torch.set_autocast_dtype('xla', before)\n"
        "with torch.autocast('xla'):\n"
        "    print((torch.ones(2, 2, device='xla') @ torch.ones(2, 2, device='xla')).dtype)\n"
    )
    assert (result.stdout, result.stderr) == ("torch.bfloat16\n", "")


def test_reloading_changes_nothing() -> None:
    result = python(
        "import importlib, torch, torch_xla\n"
        "x = torch.ones(2, device='xla')\n"
        "assert importlib.reload(torch_xla) is torch_xla\n"
        "torch_xla.sync()\n"
        "print((x + 1).tolist(), torch_xla.device())\n"
    )
    assert result.stdout == "[2.0, 2.0] xla:0\n", result.stderr


def test_a_second_copy_of_the_package_is_refused_with_the_reason() -> None:
    result = python(
        "import sys, torch_xla\n"
        "for name in [name for name in sys.modules if name.partition('.')[0] == 'torch_xla']:\n"
        "    del sys.modules[name]\n"
        "try:\n"
        "    import torch_xla\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    assert result.stdout.startswith("torch_xla was imported in this process before"), result.stderr


def test_an_exit_handler_may_be_the_first_to_compile() -> None:
    result = python(
        "import atexit, torch, torch_xla\n"
        "class Late:\n"
        "    def __del__(self):\n"
        "        (x * 3 + 1).tolist()\n"
        "x, late = torch.ones(2, device='xla'), Late()\n"
        "atexit.register(lambda: print((x * 5).tolist()))\n"
    )
    assert result.stdout == "[5.0, 5.0]\n"
    # What PyTorch and Python have taken down by the time of the last finalisers makes those fail, and nothing else.
    assert result.returncode == 0, result.stderr
