"""Refuse a release of PyTorch whose memory is not laid out as what we replace in it expects."""

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
