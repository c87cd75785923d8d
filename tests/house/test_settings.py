"""Every setting is read in one file, and `docs/environment.md` has a row for it."""

import ast
import re
from pathlib import Path

from tests.house.source import ENGINE, ROOT, imports_of, name_of, nodes_of, none, python_files, tree_of

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


def touches(path: Path) -> list[int]:
    """The lines of a file that read or write the environment."""
    found = [node.lineno for node in nodes_of(path) if isinstance(node, ast.Attribute) and node.attr in ACCESS]
    return found + [node.lineno for node, names in imports_of(path) if {f"os.{name}" for name in ACCESS} & set(names)]


def test_no_other_file_touches_the_environment() -> None:
    none(
        f"{name_of(path)}:{line}: read the environment in {name_of(CONFIG)}"
        for path in python_files("torch_xla")
        if path != CONFIG
        for line in touches(path)
    )
    assert touches(CONFIG)


def test_the_settings_never_write_the_environment() -> None:
    for node in ast.walk(tree_of(CONFIG)):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "environ":
            assert isinstance(node.ctx, ast.Load), f"{name_of(CONFIG)}:{node.lineno}: the environment is the user's"
