"""The version of this package."""

__torch_gitrev__: str | None
try:
    from torch.version import git_version as __torch_gitrev__
except ImportError:  # `python -m torch_xla.doctor` says so
    __torch_gitrev__ = None

__version__ = "3.0.0"

# Releases of this package are named by their version; programs for PyTorch/XLA print this beside PyTorch's.
__xla_gitrev__ = __version__
