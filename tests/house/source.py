"""The repository's own files, as the tests of the house read them."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "torch_xla"
ENGINE = PACKAGE / "_engine"

FOLDERS = ("torch_xla", "tests", "examples", "benchmarks", "tools")


def python_files(*folders: str) -> list[Path]:
    """The Python files below these folders of the repository, in order."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    """A file as messages and test ids show it."""
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    """The module that a file is, `torch_xla.debug.metrics`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path) -> list[tuple[ast.Import | ast.ImportFrom, list[str]]]:
    """Each import statement with the absolute names it may bind: modules, or members of modules."""
    return list(_imports_of(path))


def _imports_of(path: Path) -> Iterator[tuple[ast.Import | ast.ImportFrom, list[str]]]:
    package = module_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield node, [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield node, [f"{prefix}.{alias.name}" for alias in node.names]


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


def forget() -> None:
    """Free the parsed files."""
    for each in (tree_of, nodes_of, imports_of):
        each.cache_clear()


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in nodes_of(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def none(wrong: Iterable[str]) -> None:
    """Fail with all lines: one test checks many files, and reports each of them."""
    lines = list(wrong)
    assert not lines, "\n" + "\n".join(lines)
