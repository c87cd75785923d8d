"""A hash of the source files that decide what a program is lowered to, found by following imports.

The first program of a process waits for it: modules are strings here, because methods of `Path` took 0.1 s.
"""

import functools
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

_ENGINE = Path(__file__).parents[1]
_LOWERING, _COMPILE = "lowering", "compile"
# Not parsed, which would take half a second: the house's style leaves few forms of an import, and tests compare.
_IMPORT = re.compile(r"^ *from (\.+)([\w.]*) import (?:\(([^)]*)\)|([^\n(]*))", re.MULTILINE)
_NAME = re.compile(r"(\w+)(?:\s+as\s+\w+)?\s*(?:,|$)", re.MULTILINE)


@functools.cache
def digest() -> str:
    """Return a hash of `found()`: names and contents."""
    whole = hashlib.sha256()
    for path in found():
        whole.update(f"{path.relative_to(_ENGINE)}\n".encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()[:16]


@functools.cache
def found() -> tuple[Path, ...]:
    """Return the rooms that lower and compile, all that they import, and every other file that imports a part of
    lowering.

    The last have rules of their own, or make operations whose meaning is theirs.
    """
    files = _files()
    imports = {module: frozenset(imported(module)) for module in files}
    waiting = [module for module in imports if _is_in(module, _LOWERING) or _is_in(module, _COMPILE)]
    reached = set(waiting)
    while waiting:
        for module in imports[waiting.pop()] - reached:
            reached.add(module)
            waiting.append(module)
    reached.update(module for module, those in imports.items() if any(_is_in(each, _LOWERING) for each in those))
    return tuple(sorted(files[module] for module in reached))


def imported(module: str) -> Iterator[str]:
    """Yield the modules of the engine that one of them imports by a relative import.

    Modules have their names below the engine, which itself has none.
    """
    files = _files()
    path = files[module]
    inside = module.split(".") if path.name == "__init__.py" and module else module.split(".")[:-1]
    for dots, below, several, one in _IMPORT.findall(path.read_text()):
        outside = len(dots) - 1
        if outside > len(inside):
            continue
        place = ".".join((*inside[: len(inside) - outside], *filter(None, [below])))
        yield place
        if files[place].name == "__init__.py":
            for name in _NAME.findall(re.sub(r"#.*", "", several or one)):
                part = f"{place}.{name}" if place else name
                if part in files:
                    yield part


def _is_in(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


@functools.cache
def _files() -> dict[str, Path]:
    """Return the engine's files by the names of their modules; a package is its `__init__.py`."""
    files = {}
    for folder, _, names in os.walk(_ENGINE):
        package = os.path.relpath(folder, _ENGINE).replace(os.sep, ".").strip(".")
        for name in names:
            stem, kind = os.path.splitext(name)
            if kind == ".py":
                own = "" if stem == "__init__" else stem
                files[".".join(filter(None, (package, own)))] = Path(folder, name)
    return files
