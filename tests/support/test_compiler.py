"""Which tests compile with XLA's optimizations."""

from pathlib import Path

import pytest

from tests.support import compiler

ROOT = Path(__file__).parents[2]


def test_slow_tests_of_values_compile_as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", compiler.QUICK)
    assert compiler.options_for(Path("tests/opinfo/test_slice.py"))["xla_backend_optimization_level"] == 3
    assert compiler.options_for(Path("tests/engine/lowering/images/test_grid_sampler.py"))
    assert not compiler.options_for(Path("tests/api/test_scan.py"))
    assert all((ROOT / room).exists() for room in compiler.OPTIMIZED)


def test_flags_that_a_person_chose_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=AVX")
    assert not compiler.options_for(Path("tests/opinfo/test_slice.py"))
