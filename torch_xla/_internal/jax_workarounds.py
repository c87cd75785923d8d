"""Functions that PyTorch/XLA 2 needed to share a process with JAX. Here the client is JAX's own."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import ParamSpec, TypeVar

import jax

from .._engine import runtime

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def jax_import_guard() -> None:
    """Start the client on the platform that this package chooses, so that JAX uses the same client."""
    runtime.local_devices()


def requires_jax(func: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make the client run before `func` is called. This is a decorator."""

    @functools.wraps(func)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        jax_import_guard()
        return func(*args, **kwargs)

    return call


@contextmanager
def jax_env_context() -> Iterator[None]:
    """Enter a `with` block that changes nothing: JAX needs no other environment than this package."""
    yield


def maybe_get_jax(log: bool = True) -> ModuleType:
    """Return the module `jax`, which is always installed."""
    return jax


def maybe_get_torchax() -> None:
    """Return `None`: the package torchax is not used. `torch_xla.interop` replaces it."""
