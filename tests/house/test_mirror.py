"""Tests mirror the rooms: what a module promises is tested in the file of its name."""

from pathlib import Path

from tests.house.source import ENGINE, ROOT

TESTS = ROOT / "tests" / "engine"


def mirror(module: Path) -> Path:
    """Where the tests of a module are."""
    inside = module.relative_to(ENGINE)
    return TESTS / inside.with_name(f"test_{inside.name}")


def test_every_module_has_its_mirror() -> None:
    modules = [path for path in ENGINE.rglob("*.py") if path.name != "__init__.py"]
    missing = [str(mirror(path).relative_to(ROOT)) for path in modules if not mirror(path).exists()]
    assert modules and not missing, f"write what the modules promise as tests: {', '.join(sorted(missing))}"
