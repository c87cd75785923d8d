"""Whoever reads a public name finds what it does, and the examples there run."""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

from tests.house.source import ENGINE, functions_of, module_of, name_of, python_files, tree_of

PUBLIC = [path for path in python_files("torch_xla") if not path.is_relative_to(ENGINE)]
WITH_EXAMPLES = [path for path in PUBLIC if ">>>" in path.read_text()]


def public_definitions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Functions, classes and methods that a user may call; not those inside functions."""
    tree = tree_of(path)
    inner = {id(node) for function in functions_of(path) for node in ast.walk(function) if node is not function}
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and id(node) not in inner
    ]


@pytest.mark.parametrize("path", PUBLIC, ids=name_of)
def test_a_public_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(tree_of(path)), f"{name_of(path)}: no docstring"


@pytest.mark.parametrize("path", PUBLIC, ids=name_of)
def test_a_public_function_says_what_it_does(path: Path) -> None:
    for node in public_definitions(path):
        assert ast.get_docstring(node), f"{name_of(path)}:{node.lineno}: {node.name} has no docstring"


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=name_of)
def test_the_examples_in_docstrings_run(path: Path) -> None:
    result = doctest.testmod(importlib.import_module(module_of(path)), optionflags=doctest.ELLIPSIS)
    assert result.attempted and not result.failed
