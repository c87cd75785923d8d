"""Every public name has a docstring, and the examples in docstrings run."""

import ast
import doctest
import gc
import importlib
from pathlib import Path

import pytest

from tests.house.source import ENGINE, functions_of, module_of, name_of, nodes_of, none, python_files, tree_of

PUBLIC = [path for path in python_files("torch_xla") if not path.is_relative_to(ENGINE)]
WITH_EXAMPLES = [path for path in PUBLIC if ">>>" in path.read_text()]


def public_definitions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Functions, classes and methods that a user may call; not those inside functions."""
    inner = {id(node) for function in functions_of(path) for node in ast.walk(function) if node is not function}
    return [
        node
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and id(node) not in inner
    ]


def test_a_public_module_says_what_it_is_for() -> None:
    none(f"{name_of(path)}: no docstring" for path in PUBLIC if not ast.get_docstring(tree_of(path)))


def test_a_public_function_says_what_it_does() -> None:
    none(
        f"{name_of(path)}:{node.lineno}: {node.name} has no docstring"
        for path in PUBLIC
        for node in public_definitions(path)
        if not ast.get_docstring(node)
    )


@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=name_of)
def test_the_examples_in_docstrings_run(path: Path) -> None:
    gc.collect()  # some examples count what is held, and tests before leave tensors in cycles
    result = doctest.testmod(importlib.import_module(module_of(path)), optionflags=doctest.ELLIPSIS)
    assert result.attempted and not result.failed
