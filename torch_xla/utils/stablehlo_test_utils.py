"""Helpers for tests of exported models that compare TensorFlow's results with PyTorch's."""

import importlib
import importlib.util
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ..experimental.unbounded_dynamism_export import wrap_func_as_nn_module as _wrap


def has_tf_package() -> bool:
    """Return whether TensorFlow is installed."""
    return importlib.util.find_spec("tensorflow") is not None


def wrap_func_as_nn_module(f: Callable[..., object]) -> torch.nn.Module:
    """Return a module whose `forward` is `f`."""
    return _wrap(f)


def load_save_model_and_inference(path: str, args: Sequence[object]) -> dict[str, object]:
    """Run the signature `serving_default` of the saved model at `path` in TensorFlow, and return its results."""
    if not has_tf_package():
        raise ImportError("a saved model is loaded by TensorFlow, which is not installed: pip install tensorflow-cpu")
    tensorflow = importlib.import_module("tensorflow")
    loaded = tensorflow.saved_model.load(path)
    signature = loaded.signatures["serving_default"]
    names = signature._arg_keywords
    values = [tensorflow.constant(np.asarray(each)) for each in args]
    found: dict[str, object] = signature(**dict(zip(names, values, strict=True)))
    return found


def compare_exported_program_and_saved_model_result(
    ep: torch.export.ExportedProgram, saved_model_path: str, args: Sequence[object], atol: float = 1e-7
) -> None:
    """Raise `AssertionError` unless both models return the same values, to within `atol`."""
    expected = ep.module()(*args)
    expected = expected if isinstance(expected, tuple | list) else (expected,)
    found = load_save_model_and_inference(saved_model_path, args)
    if len(found) != len(expected):
        raise AssertionError(f"the saved model gives {len(found)} results, the program {len(expected)}")
    for (_, ours), theirs in zip(sorted(found.items()), expected, strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs.detach().numpy(), atol=atol)
