"""Every source file that affects lowering is a part of the keys of programs on disk."""

import ast
from pathlib import Path

import pytest

from torch_xla._engine.compile import source_digest
from torch_xla._engine.lowering.machinery import registry

ENGINE = Path(source_digest.__file__).parents[1]


def by_parsing(path: Path) -> set[Path]:
    """Return the engine's files that a file imports, by parsing it."""
    files = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        place = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
        if not place.is_relative_to(ENGINE):
            continue
        if place.with_suffix(".py").is_file():
            files.add(place.with_suffix(".py"))
            continue
        files.add(place / "__init__.py")
        for each in node.names:
            files |= {p for p in (place / f"{each.name}.py", place / each.name / "__init__.py") if p.is_file()}
    return files


@pytest.mark.slow
def test_imports_are_read_as_python_reads_them() -> None:
    files = source_digest._files()
    assert set(files.values()) == set(ENGINE.rglob("*.py"))
    for module, path in files.items():
        assert by_parsing(path) <= {files[each] for each in source_digest.imported(module)}, path


def test_what_lowering_stands_on_is_found() -> None:
    names = {str(path.relative_to(ENGINE)) for path in source_digest.found()}
    assert {"compat/names/jax.py", "dtypes.py", "precision.py", "ir/call_plan.py", "compile/jax_function.py"} <= names
    assert {"lowering/machinery/registry.py", "interop/jax_functions.py"} <= names
    assert not any(name.startswith("diagnostics/report") for name in names)


def test_every_rule_is_defined_in_a_file_that_is_found() -> None:
    files = {str(path) for path in source_digest.found()}
    rules = [rule for rule in registry._rules.values() if rule.lower.__module__.startswith("torch_xla._engine")]
    assert len(rules) > 500
    for rule in rules:
        function = rule.lower
        while hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        assert function.__code__.co_filename in files


def test_a_change_of_any_file_is_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = source_digest.digest.__wrapped__
    before = digest()
    assert before == digest()
    read = Path.read_bytes
    changed = ENGINE / "compat" / "names" / "jax.py"
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path == changed))
    assert digest() != before
