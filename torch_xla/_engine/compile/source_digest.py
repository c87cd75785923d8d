"""A hash of the source files that decide what a program is lowered to, found by following imports."""

import functools
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

_ENGINE = Path(__file__).parents[1]
_LOWERING, _COMPILE = _ENGINE / "lowering", _ENGINE / "compile"
# Not parsed, which would take half a second: the house's style leaves few forms of an import, and tests compare.
_IMPORT = re.compile(r"^\s*from (\.+)([\w.]*) import (?:\(([^)]*)\)|([^\n(]*))", re.MULTILINE)
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
    imports = {path: frozenset(imported(path)) for path in sorted(_ENGINE.rglob("*.py"))}
    waiting = [path for path in imports if path.is_relative_to(_LOWERING) or path.is_relative_to(_COMPILE)]
    reached = set(waiting)
    while waiting:
        for path in imports.get(waiting.pop(), frozenset()) - reached:
            reached.add(path)
            waiting.append(path)
    reached.update(path for path, those in imports.items() if any(each.is_relative_to(_LOWERING) for each in those))
    return tuple(sorted(reached))


def imported(path: Path) -> Iterator[Path]:
    """Yield the files of the engine that a file of it imports by a relative import."""
    for dots, module, several, one in _IMPORT.findall(path.read_text()):
        place = path.parents[len(dots) - 1].joinpath(*module.split(".")) if module else path.parents[len(dots) - 1]
        if not place.is_relative_to(_ENGINE):
            continue
        if place.with_suffix(".py").is_file():
            yield place.with_suffix(".py")
            continue
        yield place / "__init__.py"
        text = re.sub(r"#.*", "", several or one)
        for name in _NAME.findall(text):
            if (place / f"{name}.py").is_file():
                yield place / f"{name}.py"
            elif (place / name / "__init__.py").is_file():
                yield place / name / "__init__.py"
