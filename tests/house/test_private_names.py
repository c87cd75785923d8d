"""Private names of PyTorch and JAX are borrowed in one room, `compat/`, which a new release of either is held against,
and what is replaced of theirs is replaced through the list in `compat/patch_list.py`.

A name is private if it begins with one `_`. An operator is not, whatever its name: it belongs to a schema that is
registered, saved programs hold it, and `torch.ops.aten._softmax` has no other name. So is `torch._conj`, which is
`aten::_conj`. And a method or attribute that begins so is ours where a class of ours defines it, and none of theirs.
"""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

import torch_xla  # noqa: F401 - the generator's class
from tests.house.source import ENGINE, imports_of, name_of, nodes_of, none, python_files, tree_of

THEIRS = ("torch", "jax", "jaxlib", "torchgen", "functorch")

# Of Python itself, and of two other libraries: who takes these from elsewhere does so knowingly.
OF_OTHERS = {
    "_getframe", "_current_frames", "_exit", "_fields", "_make", "_replace", "_asdict",  # documented by Python
    "_is_owned", "_recursion_count", "_at_fork_reinit",  # locks that can be asked and begun anew
    "_log", "_lru_cache_wrapper", "_data", "_extra_reducers",  # what has no other name in its library
    "_testMethodName",  # unittest's, which PyTorch/XLA's base class of tests shows
    "_arg_keywords",  # TensorFlow's
}  # fmt: skip

OUTSIDE = [path for path in python_files("torch_xla") if ENGINE / "compat" not in path.parents]
BY_NAME = {"getattr", "setattr", "hasattr", "delattr", "attrgetter", "methodcaller"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


@cache
def known_to_them() -> frozenset[str]:
    """The private attributes of their objects that a program has to do with."""
    module, generator = torch.nn.Linear(1, 1), torch.Generator()
    objects = (
        torch.ones(1), torch.ones(1).untyped_storage(), module, module.weight, torch.ops.aten.add.Tensor, generator,
        torch.optim.SGD(module.parameters(), 0.1), torch.fx.symbolic_trace(module), DTensor, DeviceMesh,
        torch.library.Library, torch.autograd.Function, torch.TypedStorage,
    )  # fmt: skip
    return frozenset(name for each in objects for name in dir(each) if is_private(name))


@cache
def borrowed_names(path: Path) -> dict[str, str]:
    """Return the names that imports of other packages' modules bind, with their paths."""
    found = {}
    for node, names in imports_of(path):
        for alias, name in zip(node.names, names, strict=True):
            first = name.split(".")[0]
            if first in THEIRS:
                binds_first = isinstance(node, ast.Import) and alias.asname is None
                found[first if binds_first else alias.asname or alias.name] = first if binds_first else name
    return found


@cache
def defined(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The private names that the classes of a file define, and that the module itself does."""
    found: tuple[set[str], set[str]] = set(), set()
    for node, of_class in _statements(tree_of(path).body, False):
        names = found[not of_class]
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for each in ast.walk(target):
                    names.add(getattr(each, "attr", getattr(each, "id", "")))
            if of_class and ast.unparse(node).startswith("__slots__"):
                names.update(str(each.value) for each in ast.walk(node) if isinstance(each, ast.Constant))
    return frozenset(filter(is_private, found[0])), frozenset(filter(is_private, found[1]))


def _statements(body: list[ast.stmt], of_class: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield each statement, including inner ones, and whether it is in a class."""
    for node in body:
        yield node, of_class
        for name in ("body", "orelse", "finalbody", "handlers"):
            yield from _statements(getattr(node, name, []), of_class or isinstance(node, ast.ClassDef))


@cache
def ours() -> frozenset[str]:
    return frozenset().union(*(names for path in OUTSIDE for names in defined(path)))


def chain(node: ast.expr) -> list[str]:
    """Return `a.b.c` as names; the first is empty if it is another expression."""
    if isinstance(node, ast.Attribute):
        return [*chain(node.value), node.attr]
    return [node.id if isinstance(node, ast.Name) else ""]


def is_operator(names: list[str]) -> bool:
    """Whether a path is that of an operator: below `torch.ops`, or in `torch` under the name that it has in aten."""
    if "aten" in names[:-1] or names[:2] == ["torch", "ops"]:
        return True
    return len(names) == 2 and names[0] == "torch" and hasattr(torch.ops.aten, names[1])


def wrong_in(path: Path) -> Iterator[tuple[int, str]]:
    """The line of each name that this file borrows, and the name."""
    borrowed, own = borrowed_names(path), defined(path)[0]
    for node, names in imports_of(path):
        for name in names:
            if name.split(".")[0] in THEIRS and any(map(is_private, name.split("."))):
                yield node.lineno, name
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            names = chain(node)
            if names[0] in borrowed:
                wrong = not is_operator([*borrowed[names[0]].split("."), *names[1:]])
            elif names[0] == "aten":  # `torch.ops.aten`, as rules call it
                wrong = False
            else:
                wrong = is_theirs(node.attr, own)
            if wrong:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and chain(node.func)[-1] in BY_NAME:
            for each in node.args:
                if isinstance(each, ast.Constant) and isinstance(each.value, str) and is_private(each.value):
                    if is_theirs(each.value, own) and chain(node.args[0])[-1] != "aten":
                        yield node.lineno, ast.unparse(node)


def is_theirs(attribute: str, own: Iterable[str]) -> bool:
    """Whether an attribute of some object is none that we define."""
    if attribute in OF_OTHERS or attribute in own:
        return False
    return attribute in known_to_them() or attribute not in ours()


def test_private_names_are_borrowed_in_one_room() -> None:
    none(
        f"{name_of(path)}:{line}: {name} is private to PyTorch or JAX: give it a name in compat/names/, with the reason"
        for path in OUTSIDE
        for line, name in wrong_in(path)
    )


def assigned_by(node: ast.AST) -> list[ast.expr]:
    """The targets of an assignment, or of one by name."""
    if isinstance(node, ast.Assign | ast.Delete):
        return node.targets
    if isinstance(node, ast.AnnAssign | ast.AugAssign):
        return [node.target]
    is_by_name = isinstance(node, ast.Call) and chain(node.func)[-1] in ("setattr", "delattr")
    return [ast.Attribute(node.args[0], "…", lineno=node.lineno)] if is_by_name else []  # type: ignore[attr-defined]


def test_what_is_theirs_is_replaced_by_the_list_of_all_that_is() -> None:
    none(
        f"{name_of(path)}:{target.lineno}: {ast.unparse(target)} is theirs: replace it by an entry of compat/patch_list"
        for path in python_files("torch_xla")
        if (names := borrowed_names(path))
        for node in nodes_of(path)
        for target in assigned_by(node)
        if isinstance(target, ast.Attribute) and chain(target)[0] in names
    )


def test_names_of_others_are_used() -> None:
    used = {node.attr for path in OUTSIDE for node in nodes_of(path) if isinstance(node, ast.Attribute)}
    said = {node.value for path in OUTSIDE for node in nodes_of(path) if isinstance(node, ast.Constant)}
    assert used | said >= OF_OTHERS


@pytest.mark.parametrize(
    "line, found",
    [
        ("from torch.utils import _pytree", "torch.utils._pytree"),
        ("import torch._C as core", "torch._C"),
        ("import torch\ntorch._C.thing()", "torch._C"),
        ("from torch import nn\nnn.Module._apply", "nn.Module._apply"),
        ("from jax._src import core", "jax._src.core"),
        ("def f(x): return x._version", "x._version"),
        ("def f(x): return x.storage()._cdata", "x.storage()._cdata"),
        ("def f(x): return getattr(x, '_schema', None)", "getattr(x, '_schema', None)"),
        ("class A:\n    def _schema(self): ...\ndef f(x): return x._schema", None),
        ("import torch\ntorch.ops.aten._softmax, torch._conj, torch.ops.quantized._any", None),
    ],
)
def test_what_counts_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, found: str | None) -> None:
    path = tmp_path / "module.py"
    path.write_text(line)
    monkeypatch.setattr("tests.house.source.module_of", lambda path: path.stem)
    assert [name for _, name in wrong_in(path)] == ([] if found is None else [found])
