"""The installed releases have the functions that a replay allows at the paths in the tables."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from torch_xla._engine.compat.names import pure_namespaces

TORCH, NUMPY, PYTHON = (Path(module.__file__).parent for module in (torch, np, os))
# NumPy 1 has its core under the second name.
OF_ONE_RELEASE = {"_core/", "core/"}
# PyTorch 2.11 has tensors with names of dimensions; since 2.14 Dynamo's guards ask a function in C for the stream.
OF_SOME_RELEASES = {"has_names", "get_current_stream"}
# From Python 3.14 on, the types of a class's attributes are evaluated there.
OF_LATER_PYTHON = {"annotationlib"} if sys.version_info < (3, 14) else set()


@pytest.mark.parametrize("name", [*pure_namespaces.TORCH_FILES, *pure_namespaces.NOT_TORCH_FILES])
def test_a_file_of_pytorch_is_there(name: str) -> None:
    assert list(TORCH.glob(f"{name}*" if not name.endswith("/") else name))


@pytest.mark.parametrize("name", pure_namespaces.NUMPY_FILES)
def test_a_file_of_numpy_is_there(name: str) -> None:
    if name in OF_ONE_RELEASE:
        assert any((NUMPY / each).is_dir() for each in OF_ONE_RELEASE)
    else:
        assert list(NUMPY.glob(f"{name}*" if not name.endswith("/") else name))


@pytest.mark.parametrize("name", sorted(pure_namespaces.PYTHON_FILES - OF_LATER_PYTHON))
def test_a_file_of_python_is_there(name: str) -> None:
    assert (PYTHON / f"{name}.py").exists()


def test_functions_and_methods_have_these_names() -> None:
    homes = [torch, torch._C, torch._C._VariableFunctions]
    missing = {name for name in pure_namespaces.TORCH_CALLS if not any(hasattr(home, name) for home in homes)}
    missing |= {name for name in pure_namespaces.TENSOR_METHODS if not hasattr(torch.Tensor, name)}
    assert missing <= OF_SOME_RELEASES
    gone = {name for name in pure_namespaces.OF_THE_ENVIRONMENT if not hasattr(os, name.partition(".")[0])}
    coders = {os.environ.encodevalue.__qualname__, os.environ.decodevalue.__qualname__}
    assert coders <= gone and all("environ" in name and ".<locals>." in name for name in gone)


def test_functions_of_python_in_pytorch_have_these_names() -> None:
    folders = [".", "utils", "compiler", "accelerator", "cuda", "jit", "onnx", "fx"]
    sources = [path.read_text(errors="replace") for folder in folders for path in (TORCH / folder).glob("*.py")]
    missing = [
        name for name in sorted(pure_namespaces.TORCH_FUNCTIONS) if not any(f"def {name}(" in each for each in sources)
    ]
    assert missing == []
