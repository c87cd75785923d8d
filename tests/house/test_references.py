"""Reference counts depend on the caller, so they are counted in few places, each for one purpose."""

import ast
from pathlib import Path

from tests.house.source import ENGINE, name_of, nodes_of, none, python_files

# Only the first decides on the owners of a value, and so on donation.
COUNTING = {
    ENGINE / "step/liveness.py": "values",
    ENGINE / "tensor/live_counters.py": "classes of values: how many there are",
    ENGINE / "caching/interning.py": "specs, views, plans and rules",
    ENGINE / "compiled/replay/gradients.py": "gradients, which are tensors",
    ENGINE / "tensor/variable_names.py": "the variables of a frame",
}


def counts(path: Path) -> bool:
    for node in nodes_of(path):
        names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        if "getrefcount" in names or (isinstance(node, ast.Attribute) and node.attr == "getrefcount"):
            return True
    return False


def test_references_are_counted_where_it_is_said_of_what() -> None:
    found = {path for path in python_files("torch_xla") if counts(path)}
    none(f"{name_of(path)}: ask `step/liveness.py` who holds a value" for path in sorted(found - COUNTING.keys()))
    none(f"{name_of(path)} counts no references: take it out of this file" for path in COUNTING.keys() - found)
