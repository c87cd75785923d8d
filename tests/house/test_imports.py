"""Imports point one way: from each room of the engine to rooms below it."""

import ast
import graphlib
from pathlib import Path

import pytest

from tests.house.source import ENGINE, PACKAGE, functions_of, imports_of, module_of, name_of, python_files

# A room may import rooms of a lower level, and itself. Two rooms of one level do not know each other.
LEVEL = {
    "errors": 0,
    "uninterrupted": 0,
    "config": 1,
    "refused_names": 0,
    "compiler_options": 1,
    "precision": 1,
    "dtypes": 2,
    "lowering_settings": 3,
    "private": 2,
    "metrics": 3,
    "client": 4,
    "view": 4,
    "pytree": 4,
    "graph": 5,
    "lowering": 6,
    "compile": 7,
    "execute": 8,
    "record": 9,
    "distributed": 15,
    "host": 10,
    "input": 11,
    "dispatch": 11,
    "operators": 12,
    "backend": 13,
    "modes": 14,
    "dynamo": 15,
    "diagnostics": 15,
    "interop": 16,
    "export": 17,
}

# Rooms that must stay free of these libraries, so that they can be tested without a device.
FREE_OF = {
    "config": {"torch", "jax"},
    "metrics": {"torch", "jax"},
    "view": {"torch", "jax"},
}

ALL = python_files("torch_xla")
IN_ENGINE = [path for path in ALL if path.is_relative_to(ENGINE) and path != ENGINE / "__init__.py"]


def room_of(path: Path) -> str:
    return path.relative_to(ENGINE).with_suffix("").parts[0]


@pytest.mark.parametrize("path", IN_ENGINE, ids=name_of)
def test_a_room_imports_only_rooms_below_it(path: Path) -> None:
    room = room_of(path)
    assert room in LEVEL, f"{name_of(path)}: give the new room {room!r} its level in {name_of(Path(__file__))}"
    for node, targets in imports_of(path):
        for target in targets:
            where = f"{name_of(path)}:{node.lineno}"
            parts = target.split(".")
            if parts[0] != "torch_xla":
                continue
            assert parts[1] == "_engine", f"{where}: the engine may not import the public {target}"
            assert isinstance(node, ast.ImportFrom) and node.level, f"{where}: write the import of {target} relative"
            assert len(parts) > 2 and parts[2] in LEVEL, f"{where}: {target} is in no room"
            assert parts[2] == room or LEVEL[parts[2]] < LEVEL[room], f"{where}: {room}/ may not import {parts[2]}/"


@pytest.mark.parametrize("path", [path for path in IN_ENGINE if room_of(path) in FREE_OF], ids=name_of)
def test_a_pure_room_imports_neither_torch_nor_jax(path: Path) -> None:
    for node, targets in imports_of(path):
        for target in targets:
            library = target.split(".")[0]
            assert library not in FREE_OF[room_of(path)], f"{name_of(path)}:{node.lineno}: no {library} in this room"


def test_the_engine_itself_imports_nothing() -> None:
    # Whatever it imported would be imported before every room, in front of the order above.
    assert list(imports_of(ENGINE / "__init__.py")) == []


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_imports_stand_at_the_top_of_the_file(path: Path) -> None:
    for function in functions_of(path):
        for node in ast.walk(function):
            assert not isinstance(node, ast.Import | ast.ImportFrom), (
                f"{name_of(path)}:{node.lineno}: move the import out of {function.name}() to the top of the file"
            )


def test_no_two_modules_import_each_other() -> None:
    modules = {module_of(path) for path in ALL}
    graph: dict[str, set[str]] = {}
    for path in ALL:
        targets = {target for _, names in imports_of(path) for target in names}
        # A name is a submodule, or a member of the module in front of its last dot.
        found = {target if target in modules else target.rpartition(".")[0] for target in targets}
        graph[module_of(path)] = (found & modules) - {module_of(path)}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail("these import each other: " + " -> ".join(error.args[1]))


@pytest.mark.parametrize("room", ["diagnostics", "lowering"])
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
