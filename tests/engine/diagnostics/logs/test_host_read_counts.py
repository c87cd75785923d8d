"""Reads are counted by operator and place, and come back from the lines of a file."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xla._engine.diagnostics.logs.host_read_counts import Read, Tally, read_of

READS = st.builds(
    Read,
    st.text(max_size=8),
    st.lists(st.text(max_size=8), max_size=3).map(tuple),
    st.integers(1, 9),
    st.integers(0, 9),
)


@settings(max_examples=40)
@given(READS)
def test_a_line_gives_the_read_back(read: Read) -> None:
    line = read.line()
    assert read_of(line) == read and "\n" not in line


@pytest.mark.parametrize("line", ["nothing", "{}", '{"operator": "equal"}', "[1]", "null"])
def test_another_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError) as error:
        read_of(line)
    assert str(error.value) == f"not a line that XLA_FNTRACKER_FILE wrote: {line!r}"


def test_equal_places_are_summed_up_the_most_frequent_first() -> None:
    here, there = ("f (a.py:1)", "g (a.py:9)"), ("f (a.py:2)",)
    tally = Tally([Read("item", there), Read("equal", here, 2, 1), Read("equal", here, 1, 1)])
    tally.add(Read("equal", there))
    text = "\n".join(tally.summary())
    assert text.count("FRAME (count=") == 3
    first = 'FRAME (count=3):\nUnlowered Op: "equal"\nEarly evaluations of the recorded graph: 2\nPython Frames:\n'
    assert first + "  f (a.py:1)\n  g (a.py:9)\n" in text
    assert text.index("count=3") < text.index("count=1") and text.count("Early evaluations") == 1


def test_many_places_are_cut_off() -> None:
    summary = Tally(Read("equal", (f"forward (unit.py:{number})",)) for number in range(23)).summary()
    assert summary.count("FRAME (count=1):") == 20 and "and 3 more places" in summary
    assert Tally().summary() == []
