"""Bytes and seconds as people read them: three digits at least, and never a thousand of a unit that has a next one."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xla._engine.metrics.human_units import duration, size

BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
SECONDS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (999_996, "1.00 MB"), (1.5e9, "1.50 GB"), (5e15, "5000.00 TB"),
     (-2_000_000, "-2.00 MB")],
)  # fmt: skip
def test_bytes(number: float, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 µs"), (2.5e-6, "2.5 µs"), (0.000_999_999, "1.00 ms"), (0.0123, "12.30 ms"), (0.999_996, "1.00 s"),
     (90, "90.00 s")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.integers(0, 10**15), st.floats(0, 1e4))
@settings(max_examples=50)
def test_what_is_written_is_what_it_was_to_three_digits(number: int, seconds: float) -> None:
    for text, value, units in ((size(number), number, BYTES), (duration(seconds), seconds, SECONDS)):
        (digits, unit) = text.split(" ")
        assert float(digits) * units[unit] == pytest.approx(value, rel=0.005, abs=0.06e-6)
        assert unit in ("TB", "s") or re.match(r"\d{1,3}(\.|$)", digits)
