"""Every setting is read in one file, and `docs/environment.md` has a row for it."""

import ast
import re
from pathlib import Path

import pytest

from tests.house.source import ENGINE, ROOT, imports_of, name_of, python_files, tree_of

CONFIG = ENGINE / "config.py"
PAGE = ROOT / "docs" / "environment.md"

VARIABLE = re.compile(r"[A-Z][A-Z0-9]+(_[A-Z0-9]+)*")
ROW = re.compile(r"^\| `([A-Z0-9_]+)` \|", re.MULTILINE)
ACCESS = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


def variables_read() -> set[str]:
    strings = (node.value for node in ast.walk(tree_of(CONFIG)) if isinstance(node, ast.Constant))
    return {text for text in strings if isinstance(text, str) and VARIABLE.fullmatch(text)}


def test_every_variable_has_a_row_and_every_row_a_variable() -> None:
    ours = PAGE.read_text().partition("\n## ")[0]
    rows = ROW.findall(ours)
    assert sorted(rows) == sorted(set(rows)), "a variable has two rows"
    read = variables_read()
    assert not read - set(rows), f"{name_of(PAGE)} lacks a row for {sorted(read - set(rows))}"
    assert not set(rows) - read, f"{name_of(CONFIG)} does not read {sorted(set(rows) - read)}"


@pytest.mark.parametrize("path", [p for p in python_files("torch_xla") if p != CONFIG], ids=name_of)
def test_no_other_file_touches_the_environment(path: Path) -> None:
    found = [node.lineno for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute) and node.attr in ACCESS]
    found += [node.lineno for node, names in imports_of(path) if {f"os.{name}" for name in ACCESS} & set(names)]
    assert not found, f"{name_of(path)}:{found[0]}: read the environment in {name_of(CONFIG)}"


def test_the_settings_never_write_the_environment() -> None:
    for node in ast.walk(tree_of(CONFIG)):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "environ":
            assert isinstance(node.ctx, ast.Load), f"{name_of(CONFIG)}:{node.lineno}: the environment is the user's"
