"""The loader that is saved with an exported model needs only JAX."""

import ast
import json
import sys
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
import torch

from torch_xla._engine.export import exported_program, saved_model, standalone_loader


def saved(folder: Path) -> tuple[torch.nn.Module, torch.Tensor]:
    model, x = torch.nn.Linear(3, 2).to(torch.bfloat16), torch.ones(2, 3, dtype=torch.bfloat16)
    batch = torch.export.Dim("batch")
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
    saved_model.save(exported_program.convert(exported, exported_program.Options()), folder, True, False)
    return model, x


def test_it_imports_nothing_but_jax() -> None:
    tree = ast.parse(Path(standalone_loader.__file__).read_text())
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
    outside = {str(name).partition(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert outside == {"jax", "numpy"}


@pytest.mark.slow
def test_a_model_is_called_with_any_size_of_its_dynamic_dimension(tmp_path: Path) -> None:
    model, _ = saved(tmp_path)
    functions = standalone_loader.load(tmp_path)
    assert set(functions) == {"forward"}
    for rows in (1, 5):
        x = np.arange(rows * 3).reshape(rows, 3).astype(ml_dtypes.bfloat16)
        (found,) = functions["forward"](x)
        expected = model(torch.from_numpy(x.astype(np.float32)).bfloat16()).detach().float().numpy()
        assert found.dtype == ml_dtypes.bfloat16
        np.testing.assert_allclose(np.asarray(found, np.float32), expected, rtol=2e-2, atol=2e-2)
    with pytest.raises((ValueError, TypeError)):
        functions["forward"](np.ones((2, 4), ml_dtypes.bfloat16))


def test_equal_symbols_mean_one_dimension(tmp_path: Path) -> None:
    saved(tmp_path)
    meta = json.loads((tmp_path / "functions" / "forward.meta").read_text())
    exported = standalone_loader.function_of(meta, (tmp_path / "functions" / "forward.bytecode").read_bytes())
    batch = next(aval.shape[0] for aval in exported.in_avals if not isinstance(aval.shape[0], int))
    assert exported.out_avals[0].shape[0] == batch and exported.platforms == (jax.default_backend(),)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float32", "bool"])
def test_arrays_come_back_as_they_were_saved(dtype: str, tmp_path: Path) -> None:
    array = np.arange(4).astype(jax.numpy.dtype(dtype))
    np.save(tmp_path / "x.npy", array)
    found = standalone_loader.read(tmp_path / "x.npy", dtype)
    assert found.dtype == array.dtype and found.tobytes() == array.tobytes()
