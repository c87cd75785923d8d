"""Nothing of the package swallows an interrupt: who catches everything raises it again, or hands it on."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.source import name_of, nodes_of, none, python_files, tree_of

EVERYTHING = {"BaseException", "KeyboardInterrupt"}

# Threads of a loader, where no signal arrives, pass an exception to the thread that requests the batch. The doctor's
# probe is a separate process, which reports its exceptions and ends.
HANDED_ON = {
    ("torch_xla/_engine/input/device_loader.py", "_read"),
    ("torch_xla/_engine/input/device_loader.py", "_upload_next"),
    ("torch_xla/_engine/doctor/probe.py", "attempt"),
}


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def always_raises(body: list[ast.stmt]) -> bool:
    """Whether a handler's last statement raises, and nothing before leaves it."""
    leaves = any(isinstance(each, ast.Return | ast.Break | ast.Continue) for part in body for each in ast.walk(part))
    return isinstance(body[-1], ast.Raise) and not leaves


def swallowing(function: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines of a function that can make an interrupt disappear, and how."""
    for node in ast.walk(function):
        if isinstance(node, ast.ExceptHandler):
            takes_all = node.type is None or names_in(node.type) & EVERYTHING
            if takes_all and not always_raises(node.body):
                yield node.lineno, "an `except` that takes everything and does not end by `raise`"
        elif isinstance(node, ast.Try):
            for part in node.finalbody:
                for each in ast.walk(part):
                    if isinstance(each, ast.Return | ast.Break | ast.Continue):
                        yield each.lineno, "a `finally` that is left by something else than its end"
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "suppress":
            if names_in(node) & EVERYTHING:
                yield node.lineno, "`suppress` of everything"
        elif isinstance(node, ast.FunctionDef) and node.name == "__exit__":
            for each in ast.walk(node):
                if isinstance(each, ast.Return) and each.value is not None and ast.unparse(each.value) != "None":
                    yield each.lineno, "an `__exit__` that may return something true"


def passing_by(function: ast.AST, inside: bool = False) -> Iterator[int]:
    """The lines of loops at whose end an interrupt would bypass the `try` or the `with` around them.

    In Python 3.12 and 3.13, the exception table does not cover the jump back to the condition of a `while`.
    """
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield from passing_by(node)
            continue
        if isinstance(node, ast.While) and inside and not isinstance(node.test, ast.Constant):
            yield node.lineno
        handles = isinstance(node, ast.With) or (isinstance(node, ast.Try) and bool(node.handlers or node.finalbody))
        yield from passing_by(node, inside or handles)


def functions_at_the_top(path: Path) -> Iterator[tuple[str, ast.AST]]:
    for node in tree_of(path).body:
        yield getattr(node, "name", ""), node


def test_nothing_swallows_an_interrupt() -> None:
    found = {
        (name_of(path), name): [f"{name_of(path)}:{line}: {how}" for line, how in how_often]
        for path in python_files("torch_xla")
        for name, node in functions_at_the_top(path)
        if (how_often := list(swallowing(node)))
    }
    none(line for where, lines in found.items() if where not in HANDED_ON for line in lines)
    assert found.keys() == HANDED_ON, "who is listed does so no more"


def test_a_handler_of_every_error_says_why() -> None:
    """One that raises again needs no reason; another hides faults of ours unless every error is expected there."""
    none(
        f"{name_of(path)}:{node.lineno}: name the errors, or say in a comment behind `except` why all are expected"
        for path in python_files("torch_xla")
        for node in nodes_of(path)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or names_in(node.type) & {"Exception", "BaseException"})
        and not always_raises(node.body)
        and not any("#" in line for line in path.read_text().splitlines()[node.lineno - 1 : node.body[0].lineno - 1])
    )


def test_no_interrupt_passes_by_a_handler() -> None:
    none(
        f"{name_of(path)}:{line}: a `while` with a condition inside of `try` or `with`: give it a function of its own"
        for path in python_files("torch_xla")
        for line in passing_by(tree_of(path))
    )


def test_locks_are_made_where_no_interrupt_leaves_them_taken() -> None:
    none(
        f"{name_of(path)}:{node.lineno}: `{ast.unparse(node)}`: make it by `atomic.lock`"
        for path in python_files("torch_xla")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("threading.Lock", "threading.RLock")
        if path.name != "atomic.py"
    )


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("with LOCK:\n  while f(): g()", [2]),
        ("try:\n  for x in y:\n    while f(): g()\nfinally: h()", [3]),
        ("try:\n  while True: g()\nfinally: h()", []),
        ("with LOCK:\n  def f():\n    while g(): h()", []),
        ("while f():\n  with LOCK: g()", []),
    ],
)
def test_a_loop_that_lets_an_interrupt_by_is_seen(text: str, lines: list[int]) -> None:
    assert list(passing_by(ast.parse(text))) == lines


@pytest.mark.parametrize(
    "text",
    [
        "try: f()\nexcept: pass",
        "try: f()\nexcept BaseException as error:\n  if g: raise\n  h()",
        "try: f()\nexcept (ValueError, KeyboardInterrupt):\n  if g: return\n  raise",
        "def f():\n  try: g()\n  finally: return 1",
        "with contextlib.suppress(BaseException): f()",
        "class C:\n  def __exit__(self, *e): return True",
    ],
)
def test_it_is_seen(text: str) -> None:
    assert list(swallowing(ast.parse(text)))
