"""Every name of PyTorch and JAX that is borrowed is there: the first test to ask about a new release of either."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torch_xla._engine import compat

MODULES = sorted(Path(compat.__file__).parent.glob("*.py"))
LENDERS = ("torch", "jax", "jaxlib", "torchgen")


def dotted(node: ast.expr) -> list[str]:
    """`a.b.c` as a list of names; empty where it is something else."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value)):
        return [*owner, node.attr]
    return []


def bound(tree: ast.Module) -> dict[str, str]:
    """Return the names that imports bind at the top of a module, with their paths."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            found.update({each.asname or each.name.partition(".")[0]: each.asname and each.name or
                          each.name.partition(".")[0] for each in node.names})  # fmt: skip
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.update({each.asname or each.name: f"{node.module}.{each.name}" for each in node.names})
    return {name: path for name, path in found.items() if path.partition(".")[0] in LENDERS}


def borrowed(module: Path) -> Iterator[str]:
    tree = ast.parse(module.read_text())
    origins = bound(tree)
    yield from origins.values()
    own = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and (path := dotted(node)):
            if path[0] in origins and path[0] not in own:
                yield ".".join([origins[path[0]], *path[1:]])


def resolved(path: str) -> Any:
    """Resolve a path by importing modules and reading attributes; a function may have the name of its module."""
    names = path.split(".")
    for length in range(len(names) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(names[:length]))
            for name in names[length:]:
                found = getattr(found, name)
        except (AttributeError, ImportError):
            continue
        return found
    return importlib.import_module(path)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_what_is_borrowed_is_there(module: Path) -> None:
    missing = []
    for path in sorted(set(borrowed(module))):
        try:
            resolved(path)
        except (AttributeError, ImportError) as error:
            missing.append(f"{path}: {error}")
    assert not missing, f"{module.name} borrows what this release does not have:\n" + "\n".join(missing)


def test_names_are_found_under_the_names_that_imports_give_them(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("import torch._C as core\nfrom torch import nn\ncore._gone.one\nnn.Module.forward\n")
    assert set(borrowed(module)) == {"torch._C", "torch.nn", "torch._C._gone", "torch._C._gone.one",
                                     "torch.nn.Module", "torch.nn.Module.forward"}  # fmt: skip
    with pytest.raises(ImportError):
        resolved("torch._C._gone")
