"""The report of a sweep."""

from pathlib import Path

from .check import Verdict
from .entries import Entry
from .report import read, table, write


def test_a_table_tells_what_failed_in_the_sweep_and_what_repairs_brought(tmp_path: Path) -> None:
    sweep = [
        Verdict(Entry("add", "float32"), samples=8, seconds=2.0),
        Verdict(Entry("sub", "float32"), 6, [("value", "1, not 2")], ["aten::sub"], 5.0),
        Verdict(Entry("mul", "int32"), 4, [("value", "3, not 4")], [], 1.0),
    ]
    repaired = [Verdict(Entry("sub", "float32"), samples=9, seconds=1.0)]
    paths = [tmp_path / "sweep.json", tmp_path / "repaired.json"]
    for path, verdicts in zip(paths, (sweep, repaired), strict=True):
        write(verdicts, path)
        assert list(read(path).values()) == sorted(verdicts, key=lambda verdict: verdict.entry)
    assert table(paths).splitlines()[2:] == [
        "| float32 | 2 | 50.00% | 100.00% | 50.00% | 14 | 2.0 |",
        "| int32 | 1 | 0.00% | 0.00% | 100.00% | 4 | 4.0 |",
        "",
        "Failed: mul int32, sub float32.",
        "Still: mul int32.",
    ]
