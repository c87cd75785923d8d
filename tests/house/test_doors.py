"""Each room says in its `__init__` by which modules others come in; the rest of a room is its own."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.house.source import ENGINE, imports_of, module_of, name_of, python_files, tree_of

EVERY = "every module"

ROOMS = sorted(path.parent for path in ENGINE.glob("*/__init__.py"))
MODULES = {module_of(path) for path in python_files("torch_xla")}


def inside(room: Path) -> set[str]:
    """The modules of a room, by their name in it."""
    found = {module_of(path).removeprefix(f"{module_of(room / '__init__.py')}.") for path in room.rglob("*.py")}
    return found - {module_of(room / "__init__.py")}


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
    """Those that the room offers."""
    text = tree_of(room / "__init__.py").body[0].value.value  # type: ignore[attr-defined]
    said = re.search(r"^Doors: (.*?)\.\s*$", text, re.MULTILINE | re.DOTALL)
    assert said, f"{name_of(room / '__init__.py')}: end the docstring with `Doors: ` and the modules that others import"
    return inside(room) if said[1] == EVERY else set(re.split(r",\s+", said[1]))


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_others_come_in_by_the_doors_of_a_room(room: Path) -> None:
    offered, taken = doors(room), used(room)
    where = name_of(room / "__init__.py")
    assert taken <= offered, (
        f"others import {', '.join(sorted(taken - offered))} of {room.name}/: use its doors, or name it one in {where}"
    )
    if offered != inside(room):
        assert offered <= taken, f"{where}: nobody comes in by {', '.join(sorted(offered - taken))}"
