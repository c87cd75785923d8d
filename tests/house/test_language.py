"""Docstrings and comments are in plain English: a native speaker reads each of them once.

The test is a sieve. It finds phrases that made sentences of this code base hard to read; a sentence that passes may
still need a second reading, and a hit may be an honest use, for which each room has a little space.
"""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.house.source import ENGINE, FOLDERS, PACKAGE, ROOT, functions_of, name_of, nodes_of, none, python_files

# A relative clause that hangs on a preposition, a question word where the thing has a name, a person where a thread or
# a function acts, a number without a value, verbs that give values a body, and a passive without an agent.
HARD = re.compile(
    r"\bof (?:which|what|whom)\b"
    r"|(?:\A|[.:;!?]\s+|\n\s*\n\s*)(?:Who|Whoever|What)\b(?![^.?!\n]*\?)"
    r"|\b(?:some|no)body\b"
    r"|\b[Ss]o many\b"
    r"|\b(?:lies?|lay|stands?|stood|tells?|told)\b"
    r"|\bin the place of\b"
    r"|\bis said\b"
    r"|\bthose that\b"
)
ADVICE = "name the thing and who acts, and say one fact at a time"

# The largest share of docstrings and of comments with such a phrase, in per cent, for each room. Small rooms have space
# for some honest uses all the same.
GOAL = 1
HONEST_USES = 2

# A function's docstring begins with a command, "Return the size.", not with a description, "Returns the size." or "The
# size.". That of a property names what it is, and a rewrite is written as its formula.
DESCRIPTION = re.compile(
    r"(?:[A-Z][a-z]+s"
    r"|The|An?|One|Those|Each|Every|All|Both|Another|New|Its|This|That|For|Of|As|From|By|In|Has|Inside"
    r"|Why|Whether|How|Where|What|Who|Whose|Called)\b(?!\()"
)
COMMANDS = re.compile(r"(?:Pass|Process|Discuss|Access|Address|Compress|Express|Suppress|Guess|Press|Focus)\b")


def room_of(path: Path) -> str:
    """The folder whose prose is counted together: a room of the engine, a module of the package, or a folder."""
    if path.is_relative_to(ENGINE):
        parts = path.relative_to(ENGINE).parts
        return f"_engine/{parts[0]}" if len(parts) > 1 else "_engine"
    return path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else ROOT).parts[0]


@cache
def docstrings_of(path: Path) -> list[tuple[int, str]]:
    """The docstrings of a file, each with the line of its module, class or function."""
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = ((node, ast.get_docstring(node)) for node in nodes_of(path) if isinstance(node, nodes))
    return [(getattr(node, "lineno", 1), text) for node, text in found if text]


@cache
def comments_of(path: Path) -> list[tuple[int, str]]:
    """The comments of a file, each line by itself, with its number."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return [(token.start[0], token.string.lstrip("# ")) for token in tokens if token.type == tokenize.COMMENT]


def hard_to_read(kind: int) -> Iterator[str]:
    """Describe each room that has more hits than it may, with its hits; `kind` is 0 for docstrings, 1 for comments."""
    counts: dict[str, int] = defaultdict(int)
    hits: dict[str, list[str]] = defaultdict(list)
    for path in python_files(*FOLDERS):
        room = room_of(path)
        for line, text in (docstrings_of, comments_of)[kind](path):
            counts[room] += 1
            if found := HARD.search(text):
                hits[room].append(f"  {name_of(path)}:{line}: {found[0].strip()!r} in {text.splitlines()[0]!r}")
    for room, places in hits.items():
        if len(places) > max(HONEST_USES, GOAL * counts[room] / 100):
            share = f"{len(places)} of {counts[room]}, above {GOAL} %"
            yield "\n".join([f"{room}: {share}: {ADVICE}", *places])


def test_docstrings_are_in_plain_english() -> None:
    none(hard_to_read(0))


def test_comments_are_in_plain_english() -> None:
    none(hard_to_read(1))


def test_the_docstring_of_a_function_is_a_command() -> None:
    none(
        f"{name_of(path)}:{function.lineno}: {text.splitlines()[0]!r}: begin with a command, such as 'Return …'"
        for path in python_files("torch_xla")
        for function in functions_of(path)
        if (text := ast.get_docstring(function)) and DESCRIPTION.match(text) and not COMMANDS.match(text)
        if not any("property" in ast.unparse(each) or "setter" in ast.unparse(each) for each in function.decorator_list)
    )


def test_the_sieve_finds_what_is_hard_to_read_and_lets_pass_what_is_not() -> None:
    hard = ["What it gives.", "The size.\n\nWho asks waits.", "a list of which nobody knows", "It lies on the device."]
    plain = ["Return the result.", "What now?", "The relay, and what it does.", "It is stored on the device."]
    assert all(HARD.search(text) for text in hard)
    assert not any(HARD.search(text) for text in plain)
