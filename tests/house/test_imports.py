"""Imports point one way: from each room of the engine to rooms below it."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

from tests.house.source import ENGINE, PACKAGE, ROOT, functions_of, imports_of, module_of, name_of, none, python_files

# A room may import rooms of a lower level, and itself. Two rooms of one level do not know each other.
LEVEL = {
    "errors": 0,
    "atomic": 0,
    "quiet_calls": 0,
    "imported_objects": 0,
    "config": 1,
    "compiler_options": 1,
    "remote_files": 1,
    "caching": 1,
    "dtypes": 2,
    "doctor": 2,
    "compat": 2,
    "precision": 3,
    "metrics": 3,
    "pytree": 4,
    "processes": 4,
    "ir": 5,
    "runtime": 5,
    "lowering": 6,
    "compile": 7,
    "tensor": 8,
    "step": 9,
    "sharding": 10,
    "planning": 10,
    "transfer": 11,
    "input": 12,
    "dispatch": 12,
    "compiled": 13,
    "distributed": 14,
    "diagnostics": 14,
    "interop": 15,
    "export": 16,
}

# Rooms that must stay free of these libraries, so that they can be tested without a device.
FREE_OF = {
    "config": {"torch", "jax"},
    "metrics": {"torch", "jax"},
    "ir/view": {"torch", "jax"},
}

ALL = python_files("torch_xla")
IN_ENGINE = [path for path in ALL if path.is_relative_to(ENGINE) and path != ENGINE / "__init__.py"]


def room_of(path: Path) -> str:
    return path.relative_to(ENGINE).with_suffix("").parts[0]


def wrong_with(room: str, node: ast.Import | ast.ImportFrom, target: str) -> str | None:
    """Return the rule that forbids a room an import, or None."""
    parts = target.split(".")
    if parts[0] != "torch_xla":
        return None
    if parts[1] != "_engine":
        return f"the engine may not import the public {target}"
    if not isinstance(node, ast.ImportFrom) or not node.level:
        return f"write the import of {target} relative"
    if len(parts) < 3 or parts[2] not in LEVEL:
        return f"{target} is in no room"
    if parts[2] != room and LEVEL[parts[2]] >= LEVEL[room]:
        return f"{room}/ may not import {parts[2]}/"
    return None


def test_a_room_imports_only_rooms_below_it() -> None:
    new = {room_of(path) for path in IN_ENGINE} - LEVEL.keys()
    assert not new, f"give the new rooms {sorted(new)} their levels in {name_of(Path(__file__))}"
    none(
        f"{name_of(path)}:{node.lineno}: {wrong}"
        for path in IN_ENGINE
        for node, targets in imports_of(path)
        for target in targets
        if (wrong := wrong_with(room_of(path), node, target))
    )


def barred_in(path: Path) -> set[str]:
    """The libraries that a file may not import."""
    inner = path.relative_to(ENGINE).with_suffix("")
    return {name for place, names in FREE_OF.items() if inner.is_relative_to(place) for name in names}


def test_a_pure_room_imports_neither_torch_nor_jax() -> None:
    none(
        f"{name_of(path)}:{node.lineno}: no {target.split('.')[0]} in this room"
        for path in IN_ENGINE
        for node, targets in imports_of(path)
        for target in targets
        if target.split(".")[0] in barred_in(path)
    )


def test_the_architecture_tells_this_order() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    said = re.search(r"may import only rooms before it:\s+`([^`]*)`", text)
    assert said, "docs/architecture.md: tell the order of the rooms"
    rooms = {room for room in LEVEL if (ENGINE / room).is_dir()}
    levels = sorted({LEVEL[room] for room in rooms})
    told = [set(re.split(r",\s+", each)) for each in re.split(r"\s+→\s+", said[1])]
    assert told == [{room for room in rooms if LEVEL[room] == level} for level in levels]
    listed = re.findall(r"^\| `([a-z]+)/` \|", text, re.MULTILINE)
    assert set(listed) == rooms and [LEVEL[room] for room in listed] == sorted(LEVEL[room] for room in listed)


def test_the_engine_itself_imports_nothing() -> None:
    # Whatever it imported would be imported before every room, in front of the order above.
    assert imports_of(ENGINE / "__init__.py") == []


def test_imports_stand_at_the_top_of_the_file() -> None:
    none(
        f"{name_of(path)}:{node.lineno}: move the import out of {function.name}() to the top of the file"
        for path in ALL
        for function in functions_of(path)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def packages_of(module: str, importer: str) -> set[str]:
    """Return the packages whose `__init__` runs before `module`, except those that `importer` is in."""
    parts = module.split(".")
    packages = {".".join(parts[:end]) for end in range(1, len(parts))}
    return {each for each in packages if not f"{importer}.".startswith(f"{each}.")}


def packages_asked(path: Path) -> set[str]:
    """Return the packages whose `__init__` is asked for a name or a module: `from . import name`."""
    return {
        target.rpartition(".")[0]
        for node, targets in imports_of(path)
        if isinstance(node, ast.ImportFrom) and node.level and not node.module
        for target in targets
    }


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = {module_of(path) for path in ALL}
    graph: dict[str, set[str]] = {}
    for path in ALL:
        targets = {target for _, names in imports_of(path) for target in names}
        # A name is a submodule, or a member of the module in front of its last dot.
        found = {target if target in modules else target.rpartition(".")[0] for target in targets}
        found |= {package for target in found for package in packages_of(target, module_of(path))}
        graph[module_of(path)] = (found | packages_asked(path)) & modules - {module_of(path)}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail("these import each other; inside a room, import from modules: " + " -> ".join(error.args[1]))


@pytest.mark.parametrize("room", sorted(path.parent.name for path in ENGINE.glob("*/__init__.py")))
def test_the_rooms_of_a_room_do_not_import_each_other_in_a_circle(room: str) -> None:
    graph: dict[str, set[str]] = {}
    for path in python_files(f"torch_xla/_engine/{room}"):
        inner = path.relative_to(ENGINE / room).parts[:-1]
        prefix = f"torch_xla._engine.{room}."
        rooms = {t.removeprefix(prefix).split(".")[0] for _, ts in imports_of(path) for t in ts if t.startswith(prefix)}
        if inner:
            graph.setdefault(inner[0], set()).update(name for name in rooms if (ENGINE / room / name).is_dir())
            graph[inner[0]].discard(inner[0])
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail("these import each other: " + " -> ".join(error.args[1]))


def test_every_folder_with_code_is_a_package() -> None:
    for path in ALL:
        for folder in path.parents:
            if folder.is_relative_to(PACKAGE):
                assert (folder / "__init__.py").exists(), f"{name_of(folder)}: no __init__.py"
