"""Each line of the threat model names a test that exists."""

import ast
import re

from tests.house.source import ROOT, none, tree_of

PAGE = ROOT / "SECURITY.md"
NAMED = re.compile(r"`(tests/\S+\.py)::(\w+)`")


def lines() -> list[str]:
    """The rows of the tables, without their heads."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [row for row in rows if not row.startswith("| ---") and not row.endswith("| test |")]


def is_there(file: str, name: str) -> bool:
    path = ROOT / file
    return path.exists() and any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree_of(path).body)


def test_every_line_of_the_threat_model_names_a_test_that_exists() -> None:
    assert len(lines()) >= 20
    none(f"{PAGE.name}: name a test in the last column of {row!r}" for row in lines() if not NAMED.search(row))
    found = {name for row in lines() for name in NAMED.findall(row)}
    none(
        f"{PAGE.name} names {file}::{name}, which is not there"
        for file, name in sorted(found)
        if not is_there(file, name)
    )
