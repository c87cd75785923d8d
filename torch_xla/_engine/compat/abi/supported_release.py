"""Find the C++ library of PyTorch, and refuse releases with another layout in memory than we replace."""

import ctypes
import os
from typing import NoReturn

import torch

# As the package requires it (`pyproject.toml`): the releases whose layout was compared.
SUPPORTED = ">=2.11,<2.16"


def refuse(what: str, found: str) -> NoReturn:
    """Raise `RuntimeError`: `what` of this PyTorch differs, as `found` says."""
    raise RuntimeError(
        f"torch_xla replaces parts of PyTorch that have no public interface, and {what} of torch {torch.__version__} "
        f"differ from those of the supported releases: {found}. Nothing was replaced there. Install a supported "
        f"release: pip install 'torch{SUPPORTED}'"
    )


def libc10() -> ctypes.CDLL | None:
    """Return the library libc10 of PyTorch; `None` where it has another name."""
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    paths = [os.path.join(folder, name) for name in ("libc10.so", "libc10.dylib")]
    return next((ctypes.CDLL(path) for path in paths if os.path.exists(path)), None)
