"""A file is one responsibility and fits in the head."""

import ast
from pathlib import Path

import pytest

from tests.house.source import functions_of, name_of, python_files

MOST_LINES_OF_A_FILE = 500
MOST_LINES_OF_A_FUNCTION = 60

FILES = python_files("torch_xla")


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function from `def` on, without its docstring: that one may teach at length."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        lines -= (docstring.end_lineno or 0) - docstring.lineno + 1
    return lines


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_is_not_too_long(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MOST_LINES_OF_A_FILE, f"{name_of(path)} has {lines} lines: split it by what its parts do"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_function_is_not_too_long(path: Path) -> None:
    for function in functions_of(path):
        lines = lines_of(function)
        assert lines <= MOST_LINES_OF_A_FUNCTION, (
            f"{name_of(path)}:{function.lineno}: {function.name}() has {lines} lines: name its parts"
        )
