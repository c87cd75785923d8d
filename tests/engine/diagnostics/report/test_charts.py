"""The report's pictures are drawings that fit, whatever the numbers."""

from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xla._engine.diagnostics.report import charts
from torch_xla._engine.diagnostics.report.contents import COMPILING, FALLBACK, RECORDING, WAITING, StepShare
from torch_xla._engine.metrics.events import StepEnd

KINDS = (RECORDING, WAITING, FALLBACK, COMPILING)
SECONDS = st.one_of(st.just(0.0), st.floats(1e-6, 1e4))


def share(number: int, *seconds: float) -> StepShare:
    return StepShare(StepEnd(number, 0, (), 0.0, sum(seconds)), dict(zip(KINDS, seconds, strict=True)))


def drawn(picture: str) -> list[ElementTree.Element]:
    """Return the elements of a picture, and check that they are inside of it."""
    elements = list(ElementTree.fromstring(picture).iter())
    for element in elements:
        for end, length, most in (("x", "width", 1000), ("y", "height", 220)):
            if end in element.attrib:
                begin = float(element.attrib[end])
                assert -0.01 <= begin and begin + float(element.attrib.get(length, 0)) <= most + 0.01, element.attrib
    return elements


@settings(max_examples=25)
@given(st.lists(st.tuples(SECONDS, SECONDS, SECONDS, SECONDS), min_size=1, max_size=30))
def test_steps_are_bars_with_their_times(times: list[tuple[float, float, float, float]]) -> None:
    elements = drawn(charts.steps([share(number, *seconds) for number, seconds in enumerate(times, 1)]))
    titles = [element.text or "" for element in elements if element.tag.endswith("title")]
    assert [title.partition(":")[0] for title in titles] == [f"step {n}" for n in range(1, len(times) + 1)]
    assert sum(element.tag.endswith("rect") for element in elements) == 4 * len(times)


def test_only_the_last_steps_are_drawn_and_a_long_one_is_cut_off() -> None:
    shares = [share(number, 0.01, 0.0, 0.0, 2.0 if number == 290 else 0.0) for number in range(1, 301)]
    picture = charts.steps(shares)
    assert picture.count("<title>") == 200 and "steps 101 to 300" in picture and "<title>step 101: 10.00 ms" in picture
    assert ">2.0 s</text>" in picture and "compiling 2000.00 ms" in picture


@settings(max_examples=25)
@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 2**44)), min_size=1, max_size=20).map(sorted))
def test_memory_is_a_curve(samples: list[tuple[float, int]]) -> None:
    elements = drawn(charts.memory(samples))
    (curve,) = [element.attrib["points"].split() for element in elements if element.tag.endswith("polyline")]
    assert len(curve) == len(samples)
    for point in curve:
        x, y = map(float, point.split(","))
        assert 70 <= x <= 990 and 18 <= y <= 194


@pytest.mark.parametrize(("share_of_it", "width"), [(-1.0, "0.0"), (0.25, "25.0"), (7.0, "100.0")])
def test_a_bar_is_never_wider_than_its_cell(share_of_it: float, width: str) -> None:
    assert f"width:{width}%;background:{charts.COLOURS[WAITING]}" in charts.share_bar(share_of_it, WAITING)
