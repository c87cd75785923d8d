"""The report describes a program's past, as text and as a page for browsers."""

import subprocess
import warnings
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.debug as debug
from torch_xla._engine.diagnostics.memory import largest_values
from torch_xla._engine.diagnostics.recompiles import causes
from torch_xla._engine.diagnostics.report import charts, contents, history, html_page
from torch_xla._engine.diagnostics.report.contents import COMPILING, FALLBACK, RECORDING, WAITING, shares
from torch_xla._engine.metrics import events
from torch_xla._engine.metrics.events import StepEnd
from torch_xla._engine.step import schedule

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def a_fresh_history() -> Iterator[None]:
    torch_xla.sync(wait=True)
    schedule.clear_schedules()
    causes._known.clear()
    debug.clear_history()
    yield


def a_program_with_every_mistake() -> list[torch.Tensor]:
    """Recompiles for a shape, reads a value in the step, runs an operator on the CPU, keeps a large tensor."""
    model = nn.Linear(8, 8).to("xla")
    edges = torch.tensor([0.0, 2.0]).to("xla")
    kept = [torch.ones(500, 500, device="xla") * 2]  # the large one
    for number in range(6):
        x = torch.ones(4 + (number == 3), 8).to("xla")
        loss = model(x).square().mean()
        loss.backward()
        if loss.item() > 1e9:
            raise AssertionError
        torch.histogramdd(x[:, :1], (edges,))
        torch_xla.sync()
    return kept


@pytest.fixture
def kept() -> list[torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return a_program_with_every_mistake()


class Tags(HTMLParser):
    """Checks that every element is closed, and collects what a page would load."""

    VOID = {"meta", "br", "rect", "line", "path", "polygon", "polyline"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def line_of(words: str) -> int:
    return next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if words in line)


def test_the_text_tells_every_mistake_with_its_line(kept: list[torch.Tensor]) -> None:
    text = debug.report()
    assert f"torch {torch.__version__.partition('+')[0]}" in text and "jax " in text and "used of" in text
    assert "the last 6," in text
    assert "dim 0 of input 'x' 4 → 5" in text
    assert f"{HERE}:{line_of('if loss.item()')} in a_program_with_every_mistake: if loss.item() > 1e9:" in text
    assert f"aten::_histogramdd_from_bin_tensors ({HERE}:{line_of('torch.histogramdd')} in a_program" in text
    assert f"976.56KB       1  {HERE}:{line_of('# the large one')} in a_program" in text
    assert "[500, 500] float32, such as kept[0]" in text
    assert "Counter: MarkStep" in text


def test_the_page_is_whole_and_needs_nothing_else(kept: list[torch.Tensor], tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    text = debug.report(path)
    found = path.read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(found)
    assert (
        tags.open == []
        and tags.loaded == []
        and "<script" not in found
        and "http:" not in found.replace("http://www.w3.org/2000/svg", "")
    )
    for words in ("dim 0 of input &#x27;x&#x27; 4 → 5", "aten::_histogramdd", "if loss.item() &gt; 1e9:", "[500, 500]"):
        assert words in found
    assert found.count("<svg") == 2 and text.startswith("torch_xla report\n")
    debug.report(tmp_path / "report.txt")
    assert (tmp_path / "report.txt").read_text().startswith("torch_xla report\n")


def test_a_report_of_nothing_says_so() -> None:
    text = debug.report()
    for words in ("No step ended yet.", "Nothing was compiled.", "The host waited for no value.", "\nnone\n"):
        assert words in text
    assert "No step ended yet." in html_page.to_page(contents.collect())


def test_a_history_that_is_not_kept_is_said() -> None:
    debug.keep_history(False)
    try:
        assert "history:   not kept" in debug.report()
    finally:
        debug.keep_history(True)


def test_the_seconds_of_a_step_go_to_the_first_of_what_overlaps() -> None:
    steps = [StepEnd(1, 0, (), 0.0, 10.0), StepEnd(2, 0, (), 10.0, 10.0)]
    spans = [(1.0, 5.0, WAITING), (2.0, 4.0, COMPILING), (8.0, 12.0, FALLBACK), (9.0, 11.0, WAITING)]
    first, second = shares(steps, sorted(spans))
    assert first.seconds == {COMPILING: 2, FALLBACK: 2, WAITING: 2, RECORDING: 4}
    assert second.seconds == {COMPILING: 0, FALLBACK: 2, WAITING: 0, RECORDING: 8}


def test_the_pictures_are_drawings_that_fit(kept: list[torch.Tensor]) -> None:
    bars = charts.steps(contents.collect().steps)
    for drawing in (bars, charts.memory([(0.0, 10), (1.0, 30), (2.0, 20)])):
        root = ElementTree.fromstring(drawing)
        for element in root.iter():
            for name in ("x", "y"):
                if name in element.attrib:
                    assert 0 <= float(element.attrib[name]) <= 1000
            assert float(element.attrib.get("height", 0)) >= 0 and float(element.attrib.get("width", 1)) > 0
    titles = [
        element.text
        for element in ElementTree.fromstring(charts.steps(contents.collect().steps)).iter()
        if element.text
    ]
    assert sum(title.startswith("step ") for title in titles) == 6


def test_holdings_count_each_buffer_once() -> None:
    x = torch.ones(100, 100, device="xla") + 1
    y, view = x.clone(), x[0]
    torch_xla.sync(wait=True)
    mine = [
        h
        for h in largest_values.holdings(1000)
        if h.line and h.line[0] == __file__ and h.line[1] == line_of("100, 100")
    ]
    assert [(holding.count, holding.bytes) for holding in mine] == [(1, 40_000)]
    assert mine[0].names == ["x"] and y.shape == (100, 100) and view.shape == (100,)


def test_the_history_takes_bounded_memory() -> None:
    for each in (history.recent, events.steps, history.memory_used):
        assert each is not None and each.maxlen is not None and each.maxlen <= 8192


@pytest.mark.slow
def test_a_browser_shows_the_page(kept: list[torch.Tensor], tmp_path: Path) -> None:
    debug.report(tmp_path / "report.html")
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", str(tmp_path / "report.html")]
    try:
        shown = subprocess.run(browser, capture_output=True, text=True, timeout=120).stdout
    except FileNotFoundError:
        pytest.skip("there is no chromium here")
    assert "dim 0 of input" in shown and shown.count("</svg>") == 2
