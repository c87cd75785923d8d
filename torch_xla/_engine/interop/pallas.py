"""Interpret Pallas kernels on platforms that cannot compile them."""

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import jax


def _pallas_tpu() -> ModuleType:
    """Return the module, which takes 45 ms to import, for programs that interpret kernels."""
    return importlib.import_module("jax.experimental.pallas.tpu")


class Interpreted:
    """A function that calls Pallas, as one that any platform runs, slowly."""

    def __init__(self, kernel: Callable[..., object]) -> None:
        self._kernel = kernel
        # As XLA's operations, step by step of the grid; what those do not know, such as messages between devices, as a
        # simulation of a TPU in Python.
        self._mode: Any = True

    def around(self) -> AbstractContextManager[None]:
        """Interpret Pallas kernels within a `with` block, also where JAX traces the function's own gradients."""
        return _pallas_tpu().force_tpu_interpret_mode(self._mode)

    def __call__(self, *arrays: object, **kwargs: object) -> Any:
        if self._mode is True:
            try:
                with self.around():
                    jax.jit(lambda *given: self._kernel(*given, **kwargs)).lower(*jax.tree.map(jax.typeof, arrays))
            except Exception:  # JAX has no one error for what it cannot interpret; an error of the kernel's own recurs
                self._mode = _pallas_tpu().InterpretParams()
        with self.around():
            return self._kernel(*arrays, **kwargs)
