"""A file is one responsibility and fits in the head."""

import ast

from tests.house.source import functions_of, name_of, none, python_files

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


def test_no_file_is_too_long() -> None:
    none(
        f"{name_of(path)} has {lines} lines: split it by what its parts do"
        for path in FILES
        if (lines := len(path.read_text().splitlines())) > MOST_LINES_OF_A_FILE
    )


def test_no_function_is_too_long() -> None:
    none(
        f"{name_of(path)}:{function.lineno}: {function.name}() has {lines} lines: name its parts"
        for path in FILES
        for function in functions_of(path)
        if (lines := lines_of(function)) > MOST_LINES_OF_A_FUNCTION
    )
