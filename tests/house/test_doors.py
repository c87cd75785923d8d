"""Each room lists in its `__init__` the modules that other rooms import, and exports there what the package uses."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.house.source import ENGINE, imports_of, module_of, name_of, nodes_of, none, python_files, tree_of

ROOMS = sorted(path.parent for path in ENGINE.glob("*/__init__.py"))
MODULES = {module_of(path) for path in python_files("torch_xla")}


@cache
def imported() -> list[tuple[Path, str]]:
    """Every file with each module that it imports."""
    return [
        (path, name if name in MODULES else name.rpartition(".")[0])
        for path in python_files("torch_xla")
        for _, names in imports_of(path)
        for name in names
    ]


def used(room: Path) -> set[str]:
    """Return the names of a room that files outside of the room import."""
    prefix = f"{module_of(room / '__init__.py')}."
    found = [name for path, name in imported() if name.startswith(prefix) and room not in path.parents]
    return {name.removeprefix(prefix) for name in found}


def doors(room: Path) -> set[str]:
    """Return the modules that the room offers."""
    text = tree_of(room / "__init__.py").body[0].value.value  # type: ignore[attr-defined]
    said = re.search(r"^Doors: (.*?)\.\s*$", text, re.MULTILINE | re.DOTALL)
    assert said, f"{name_of(room / '__init__.py')}: end the docstring with `Doors: ` and the modules that others import"
    return set() if said[1] == "none" else set(re.split(r",\s+", said[1]))


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_others_come_in_by_the_doors_of_a_room(room: Path) -> None:
    offered, taken = doors(room), used(room)
    where = name_of(room / "__init__.py")
    assert taken <= offered, (
        f"others import {', '.join(sorted(taken - offered))} of {room.name}/: use its doors, or name it one in {where}"
    )
    assert offered <= taken, f"{where}: nobody comes in by {', '.join(sorted(offered - taken))}"


# Rooms that others use module by module. Each number is today's: lower it with the doors, and never raise it.
WITH_MANY_DOORS = {
    "compat": 8,
    "ir": 14,
    "metrics": 8,
    "processes": 5,
    "runtime": 12,
    "step": 18,
    "tensor": 14,
    "transfer": 5,
}

# Folders whose modules are all for other rooms. Each counts as one door, so that splitting a module of it adds none.
ALL_DOORS = {"compat": "names"}


def distinct_doors(room: Path) -> set[str]:
    """Return the doors of the room, with one for all modules of its folder in `ALL_DOORS`."""
    folder = ALL_DOORS.get(room.name)
    return {folder if folder and door.startswith(f"{folder}.") else door for door in doors(room)}


def test_a_room_hides_most_of_its_modules() -> None:
    none(
        f"{name_of(room)}: {count} of {len(files)} modules are doors; move what only others use to where it is used"
        for room in ROOMS
        if len(files := [path for path in room.rglob("*.py") if path.name != "__init__.py"]) > 5
        if (count := len(distinct_doors(room))) > WITH_MANY_DOORS.get(room.name, 0.6 * len(files))
    )


def exports(room: Path) -> set[str]:
    """Return the names that the `__init__` of a room imports from the room."""
    package = module_of(room / "__init__.py")
    return {
        alias.asname or alias.name
        for node, targets in imports_of(room / "__init__.py")
        if isinstance(node, ast.ImportFrom) and targets[0].startswith(f"{package}.")
        for alias in node.names
    }


def asked_of_rooms() -> set[str]:
    """Return what files outside of each room use of its `__init__`: `room.name`, by an import or an attribute."""
    found = {name for path in python_files("torch_xla") for _, names in imports_of(path) for name in names}
    rooms = {module_of(room / "__init__.py") for room in ROOMS}
    for path in python_files("torch_xla"):
        local = {
            alias.asname or alias.name: target
            for node, targets in imports_of(path)
            for alias, target in zip(node.names, targets, strict=True)
            if target in rooms
        }
        for node in nodes_of(path) if local else ():
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in local:
                found.add(f"{local[node.value.id]}.{node.attr}")
    return found


def test_a_room_exports_only_names_that_others_use() -> None:
    asked = asked_of_rooms()
    none(
        f"{name_of(room / '__init__.py')}: nobody uses {name}"
        for room in ROOMS
        for name in sorted(exports(room))
        if f"{module_of(room / '__init__.py')}.{name}" not in asked
    )


# The public package is a façade: it uses what the rooms export, and few modules besides.
MOST_MODULES_OF_THE_ENGINE = 60


def test_the_public_package_is_a_facade() -> None:
    taken = {
        name for path, name in imported() if not path.is_relative_to(ENGINE) and name.startswith("torch_xla._engine.")
    }
    assert len(taken) <= MOST_MODULES_OF_THE_ENGINE, (
        f"the public package imports {len(taken)} modules of the engine: export names by the `__init__` of the room"
    )
