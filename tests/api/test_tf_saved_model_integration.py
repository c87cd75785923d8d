"""Models as SavedModels: TensorFlow's results if it is installed, and the error if it is not."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torch_xla import tf_saved_model_integration
from torch_xla.stablehlo import exported_program_to_stablehlo
from torch_xla.tf_saved_model_integration import make_tf_function, save_torch_module_as_tf_saved_model

HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None


@pytest.mark.slow
def test_triton_is_loaded_before_tensorflow(tmp_path: Path) -> None:
    """The other order ends the process: `torch.export` loads Triton, and both bring LLVM."""
    for name in ("tensorflow", "triton"):
        (tmp_path / f"{name}.py").write_text(f"print('{name}')\n")
    code = "from torch_xla import tf_saved_model_integration as saved; saved._tensorflow()"
    path = os.pathsep.join((str(tmp_path), *sys.path))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["triton", "tensorflow"], done.stderr


@pytest.mark.skipif(HAS_TENSORFLOW, reason="TensorFlow is installed")
def test_without_tensorflow_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=r"pip install tensorflow.*save_as_stablehlo"):
        save_torch_module_as_tf_saved_model(torch.nn.ReLU(), (torch.ones(2),), tmp_path)
    program = exported_program_to_stablehlo(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)))
    with pytest.raises(ImportError, match="needs TensorFlow"):
        make_tf_function(program)


@pytest.mark.skipif(not HAS_TENSORFLOW, reason="TensorFlow is not installed")
def test_tensorflow_computes_the_same(tmp_path: Path) -> None:
    tf = tf_saved_model_integration._tensorflow()
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(-1)), torch.randn(5, 4)
    save_torch_module_as_tf_saved_model(model, (x,), tmp_path, dynamic_shapes=({0: torch.export.Dim("batch")},))
    loaded = tf.saved_model.load(str(tmp_path))
    for rows in (x, torch.randn(7, 4)):
        result = loaded.signatures["serving_default"](args_0=tf.constant(rows.numpy()))["output_0"]
        torch.testing.assert_close(torch.from_numpy(result.numpy()), model(rows).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not HAS_TENSORFLOW, reason="TensorFlow is not installed")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("version", [None, "1.13.0"])
def test_what_jax_writes_as_composites_runs(version: str | None, dynamic: bool, tmp_path: Path) -> None:
    tf = tf_saved_model_integration._tensorflow()
    model, x = torch.nn.GELU(), torch.randn(5, 4)
    shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
    save_torch_module_as_tf_saved_model(model, (x,), tmp_path, shapes, stablehlo_version=version)
    result = tf.saved_model.load(str(tmp_path)).signatures["serving_default"](args_0=tf.constant(x.numpy()))
    torch.testing.assert_close(torch.from_numpy(result["output_0"].numpy()), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not HAS_TENSORFLOW, reason="TensorFlow is not installed")
def test_a_function_of_lapack_is_refused_when_the_model_is_saved(tmp_path: Path) -> None:
    class Inverse(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.inv(x)

    with pytest.raises(NotImplementedError, match=r"lapack_sgetrf_ffi \(of aten::\w+\).* TensorFlow lacks"):
        save_torch_module_as_tf_saved_model(Inverse(), (torch.eye(3),), tmp_path)
