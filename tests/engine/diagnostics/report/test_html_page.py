"""The report as a page: whole, by itself, and with nothing of the program's own taken as HTML."""

from html.parser import HTMLParser

import torch

from torch_xla._engine.diagnostics.memory.largest_values import Holding
from torch_xla._engine.diagnostics.recompiles.causes import Explanation
from torch_xla._engine.diagnostics.recompiles.differences import Difference, Kind
from torch_xla._engine.diagnostics.report import html_page
from torch_xla._engine.diagnostics.report.contents import COMPILING, FALLBACK, RECORDING, WAITING, Report, StepShare
from torch_xla._engine.diagnostics.report.history import FallbackCost
from torch_xla._engine.diagnostics.waiting.wait_costs import Cost
from torch_xla._engine.metrics.events import Cause, StepEnd

EVIL = "<script src='x'>&\"</script>"
LINE = (f"/home/{EVIL}.py", 7, f"{EVIL}")


class Tags(HTMLParser):
    """Checks that every element is closed, and collects the elements and the text."""

    VOID = {"meta", "br"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def explanation(text: str, seconds: float) -> Explanation:
    return Explanation((Difference(Kind.INPUT, text, LINE),), LINE, LINE, Cause.SYNC, 5, seconds, 0.0)


def full() -> Report:
    seconds = {COMPILING: 0.25, FALLBACK: 0.0, WAITING: 0.25, RECORDING: 0.5}
    return Report(
        setting=[("settings", EVIL)],
        since=12.34,
        steps=[StepShare(StepEnd(3, 0, (), 0.0, 1.0), seconds)],
        compilations=[explanation(EVIL, 1.0), explanation(EVIL, 0.5), explanation("other", 0.25)],
        costs=[Cost(LINE, 4, 3, 0, 0.5, 0.25, 0.5, 16)],
        fallbacks=[FallbackCost(EVIL, 2, 0.125, {LINE: 2})],
        memory=[(0.0, 1), (1.0, 2)],
        holdings=[Holding(LINE, 2, 2048, None, [EVIL])],
        metrics=EVIL,
    )


def test_what_the_program_says_is_text() -> None:
    found = html_page.to_page(full())
    tags = Tags(found)
    assert tags.open == [] and not tags.seen & {"script", "img", "link"} and EVIL not in found
    # The setting, a difference, the lines of a read, of a fallback and of a holding, an operator, a name, the metrics.
    assert tags.text.count(EVIL) == 8


def test_equal_explanations_are_one_row_with_their_sum() -> None:
    text = html_page.to_page(full())
    assert text.count(">recompiled (") == 2
    assert '<td class="number">1.50</td>' in text and '<td class="number">0.25</td>' in text
    assert "The last 12.3 seconds of one process." in text and "2.00KB" in text and text.count("<svg") == 2


def test_nothing_is_said_to_be_nothing() -> None:
    text = html_page.to_page(Report())
    for words in (
        *("No step ended yet.", "Nothing was compiled.", "The host waited for no value."),
        *("None: every operator ran on the device.", "No samples yet.", "<pre>none</pre>"),
    ):
        assert words in text
    assert Tags(text).open == [] and torch.__version__ not in text
