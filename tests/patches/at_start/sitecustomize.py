"""Leave out one patch of PyTorch or JAX, in every Python process that has this folder in `PYTHONPATH`.

Python imports a module of this name when it starts, so processes that a test starts lack the patch too.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

VARIABLE = "TEST_WITHOUT_PATCH"
_COMPAT = "torch_xla._engine.compat."


class _Changing(importlib.abc.MetaPathFinder):
    """Finds one module, and changes it as soon as it has run."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec and spec.loader
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def leave_out(name: str) -> None:
    """Leave out a patch, if the package is imported after this call.

    `name` is that of an attribute, or of a function in `compat/` that writes to memory (`replaced_internals.REPLACED`).
    """

    def without_patch(module: ModuleType) -> None:
        (patch,) = (each for each in sys.modules[f"{_COMPAT}patch"].ALL if name in each.names)
        patch.wrap = patch.put = patch.take_back = lambda *_: None

    def without_function(module: ModuleType) -> None:
        setattr(module, function, lambda *_: True)

    if name.startswith(("torch.", "jax.")):
        finder = _Changing(f"{_COMPAT}patch_list", without_patch)
    else:
        module_name, _, function = name.rpartition(".")
        finder = _Changing(_COMPAT + module_name, without_function)
    sys.meta_path.insert(0, finder)


if left_out := os.environ.get(VARIABLE):
    leave_out(left_out)
