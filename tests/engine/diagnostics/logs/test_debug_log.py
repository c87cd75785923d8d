"""PT_XLA_DEBUG: what it says is pinned in the form of the documents, and each cause is made to happen."""

import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl
from torch_xla._engine.diagnostics.logs import debug_log, switches
from torch_xla._engine.metrics import count, metric

ROOT = Path(__file__).parents[4]
EQUALS, DASHES = "=" * 80, "-" * 80

Program = Callable[[], object]
Tell = Callable[..., list[str]]


@pytest.fixture
def tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tell]:
    """Runs a program under the settings given, and returns the lines of PT_XLA_DEBUG_FILE."""
    file = tmp_path / "analysis.txt"

    def run(program: Program, **settings: str) -> list[str]:
        torch_xla.sync()
        for name, value in ({"PT_XLA_DEBUG_LEVEL": "2"} | settings).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PT_XLA_DEBUG_FILE", str(file))
        switches.apply_settings()
        program()
        return file.read_text().splitlines() if file.exists() else []

    yield run
    for name in [name for name in os.environ if name.startswith("PT_XLA_DEBUG")]:
        monkeypatch.delenv(name)
    switches.apply_settings()


def here() -> str:
    """The file and the line of the caller."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return f"{__file__}:{frame.f_back.f_lineno}"


def causes(lines: list[str]) -> list[str]:
    """Return the causes, "Compilation: user torch_xla.sync" and so on, in order."""
    found = []
    for title, cause in zip(lines, lines[1:], strict=False):
        kind = re.fullmatch(r"(\w+) Analysis: \1 Cause", title)
        if kind:
            found.append(f"{kind[1]}: {cause.removeprefix(f'{kind[1]} Analysis:   ')}")
    return found


def test_a_step_is_told_in_the_form_of_the_documents(tell: Tell) -> None:
    places: list[str] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x @ x + 0.25
        (torch_xla.sync(), places.append(here()))
        return y

    x = torch.ones(500, 500).to("xla")
    lines = tell(lambda: step(x), PT_XLA_DEBUG_MAX_FRAME="2")
    graph_hash = lines[4].removeprefix("Compilation Analysis:   Graph Hash: ")
    assert re.fullmatch("[0-9a-f]{32}", graph_hash)
    sync = f"sync ({torch_xla.__file__}:"
    explained = [
        "Graph Info:",
        f"  Graph Hash: {graph_hash}",
        "  Number of Graph Inputs: 1",
        "  Number of Graph Outputs: 1",
        "Python Frame Triggered Execution:",
        f"  {sync}0)",
        f"  step ({places[0]})",
        "  ..........",
        DASHES,
        EQUALS,
    ]
    compiled = [EQUALS, "Compilation Cause", "  user torch_xla.sync", *explained]
    needs = [
        EQUALS,
        "Graph input size: 0.001000 GB",
        "Graph output size: 0.001000 GB",
        "Aliased Input size: 0.000000 GB",
        "Intermediate tensor size: 0.000000 GB",
        "Compiled program size: 0.000000 GB",
        DASHES,
        EQUALS,
    ]
    executed = [EQUALS, "Execution Cause", "  user torch_xla.sync", *explained]
    expected = [
        *(f"Compilation Analysis: {line}" for line in compiled),
        "",
        *(f"Post Compilation Analysis: {line}" for line in needs),
        "",
        *(f"Execution Analysis: {line}" for line in executed),
        "",
    ]
    found = [re.sub(rf"({re.escape(sync)})\d+", r"\g<1>0", line) for line in lines]
    assert [
        re.sub(r"(Intermediate tensor|program) size: .*", r"\1 size: 0.000000 GB", line) for line in found
    ] == expected


def test_the_reason_of_a_recompilation_is_told_with_it(tell: Tell) -> None:
    places: list[str] = []

    def steps() -> None:
        for rows in (3, 5):
            rows_of_ones = torch.ones(rows, 71).to("xla")
            (kept := rows_of_ones * 3, places.append(here()))
            torch_xla.sync()
            del kept

    why = [line for line in tell(steps, PT_XLA_DEBUG_LEVEL="1") if line.startswith("Recompilation Analysis")]
    name, line = Path(__file__).name, places[0].rsplit(":", 1)[1]
    assert why == [f"Recompilation Analysis: recompiled ({name}:{line}): dim 0 of input 'rows_of_ones' 3 → 5"]


def test_a_known_program_is_only_executed(tell: Tell) -> None:
    def step() -> None:
        x = torch.ones(7, device="xla") * 3
        torch_xla.sync()
        del x

    step()
    assert causes(tell(step)) == ["Execution: user torch_xla.sync"]


def test_level_1_tells_compilations_alone(tell: Tell) -> None:
    def steps() -> None:
        for _ in range(2):
            x = torch.ones(11, device="xla") * 3
            torch_xla.sync()
            del x

    assert causes(tell(steps, PT_XLA_DEBUG_LEVEL="1")) == ["Compilation: user torch_xla.sync"]


def test_pt_xla_debug_alone_tells_everything(tell: Tell) -> None:
    def step() -> None:
        x = torch.ones(13, device="xla") * 3
        torch_xla.sync()
        del x

    lines = tell(step, PT_XLA_DEBUG_LEVEL="0", PT_XLA_DEBUG="1")
    assert causes(lines) == ["Compilation: user torch_xla.sync", "Execution: user torch_xla.sync"]


def by_mark_step() -> None:
    x = torch.ones(17, device="xla") * 3
    xm.mark_step()
    del x


def by_loader() -> None:
    x = torch.ones(19, device="xla") * 3
    next(iter(pl.MpDeviceLoader([torch.ones(1)], "xla")))
    del x


def by_reading() -> None:
    print(torch.ones(23, device="xla") * 3)


def by_condition() -> None:
    if torch.ones(29, device="xla").sum() > 3:
        pass


@pytest.mark.parametrize("replay", [None, True])
def test_a_region_has_its_name_and_so_has_what_was_recorded_before_it(tell: Tell, replay: bool | None) -> None:
    doubled = torch_xla.compile(lambda x: x * 2, name="doubled", replay=replay)

    def program() -> None:
        x = torch.ones(24 + bool(replay)).to("xla") + 1
        doubled(x)

    lines = tell(program)
    assert causes(lines) == [
        "Compilation: torch_xla.compile clear the pending graph prior calling the target function",
        "Execution: torch_xla.compile clear the pending graph prior calling the target function",
        "Compilation: torch_xla.compile",
        "Execution: torch_xla.compile",
    ]
    named = [line.partition(": ")[::2] for line in lines if "  Graph Name: " in line]
    assert named == [
        ("Compilation Analysis", "  Graph Name: doubled_clear_pending"),
        ("Execution Analysis", "  Graph Name: doubled_clear_pending"),
        ("Compilation Analysis", "  Graph Name: doubled"),
        ("Execution Analysis", "  Graph Name: doubled"),
    ]


def test_a_replayed_region_has_its_name_too(tell: Tell) -> None:
    tripled = torch_xla.compile(lambda x: x * 3, name="tripled", replay=True)
    x = torch.ones(31).to("xla")

    def program() -> None:
        for _ in range(5):
            x + 1  # noqa: B018  (it is gone before anything runs)
            tripled(x)

    lines = tell(program)
    named = [line for line in lines if line.endswith("Execution Analysis:   Graph Name: tripled")]
    assert len(named) == 5


def test_the_seed_is_an_input_of_a_graph_that_draws(tell: Tell) -> None:
    def program() -> None:
        x = torch.ones(33).to("xla") + torch.randn(33, device="xla")
        torch_xla.sync()
        del x

    lines = tell(program)
    assert [line for line in lines if "Number of Graph Inputs" in line] == [
        "Compilation Analysis:   Number of Graph Inputs: 2",
        "Execution Analysis:   Number of Graph Inputs: 2",
    ]


def test_graphs_can_be_named_from_outside(tell: Tell) -> None:
    def program() -> None:
        torch_xla._XLAC._set_current_graph_name("encoder")
        x = torch.ones(35).to("xla") + 1
        torch_xla.sync()
        torch_xla._XLAC._set_current_graph_name("")
        del x

    assert "Execution Analysis:   Graph Name: encoder" in tell(program)


def test_a_sync_inside_a_region_is_the_users(tell: Tell) -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        y = x * 3
        torch_xla.sync()
        return y

    lines = tell(lambda: torch_xla.compile(inside)(torch.ones(25).to("xla")))
    assert causes(lines) == ["Compilation: user torch_xla.sync", "Execution: user torch_xla.sync"]


def test_what_may_not_run_is_told_and_refused(tell: Tell) -> None:
    def program() -> None:
        x = torch.ones(27).to("xla") + 1
        with pytest.raises(RuntimeError, match="_set_allow_execution"):
            x.tolist()

    torch_xla._XLAC._set_allow_execution(False)
    try:
        lines = tell(program, PT_XLA_DEBUG_MAX_FRAME="1")
    finally:
        torch_xla._XLAC._set_allow_execution(True)
    line = inspect.getsourcelines(program)[1] + 3
    assert lines == [
        *(
            f"Unexpected Execution Analysis: {text}"
            for text in (
                EQUALS,
                "Execution Cause",
                "  most likely user code trying to access tensor value before torch_xla.sync",
                "Python Frame Triggered Execution:",
                f"  program ({__file__}:{line})",
                "  ..........",
                DASHES,
                EQUALS,
            )
        ),
        "",
    ]


def test_dynamo_is_named(tell: Tell) -> None:
    @torch.no_grad()
    def program() -> None:
        compiled = torch.compile(lambda x: x * 2 + 1, backend="openxla")
        compiled(torch.ones(26).to("xla"))

    assert causes(tell(program)) == [
        "Compilation: dynamo is compiling a FX graph to HLO",
        "Execution: dynamo is executing a compiled program",
    ]


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        (by_mark_step, "user mark_step"),
        (by_loader, "torch_xla.sync in parallel loader at step end"),
        (by_reading, "most likely user code trying to access tensor value before torch_xla.sync"),
        (by_condition, "most likely user code trying to access tensor value before torch_xla.sync"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_cause_has_its_words(program: Program, cause: str, tell: Tell) -> None:
    lines = tell(program)
    assert causes(lines) == [f"Compilation: {cause}", f"Execution: {cause}"]
    assert any(line.startswith(f"Execution Analysis:   {program.__name__} ({__file__}:") for line in lines)


def test_a_loader_that_ends_the_step_is_told_with_the_frames_of_the_documents(tell: Tell) -> None:
    lines = [line for line in tell(by_loader) if line.startswith("Execution Analysis: ")]
    at = lines.index("Execution Analysis: Python Frame Triggered Execution:")
    frames = [line.removeprefix("Execution Analysis:   ") for line in lines[at + 1 : -2]]
    loader = re.escape(str(pl.__file__))
    for frame, expected in zip(frames, ("_end_step", "next", "__next__"), strict=False):
        assert re.fullmatch(rf"{expected} \({loader}:\d+\)", frame)
    assert frames[3].startswith(f"by_loader ({__file__}:") and len(frames) == 9 and frames[8] == ".........."


def test_the_warnings_of_the_documents_word_for_word() -> None:
    for _ in range(21):
        metric("CompileTime").add(1e6)
    for _ in range(11):
        metric("TransferFromDeviceTime").add(1e3)
    count("MarkStep", 11)
    count("aten::_ctc_loss", 3)
    count("aten::_ctc_loss_backward", 3)
    count("aten::_local_scalar_dense", 9)  # transfers report reads
    assert debug_log.findings() == [
        "CompileTime too frequent: 21 counts during 11 steps",
        "TransferFromDeviceTime too frequent: 11 counts during 11 steps",
        "Op(s) not lowered: aten::_ctc_loss, aten::_ctc_loss_backward,  "
        "Please open a GitHub issue with the above op lowering requests.",
    ]


def test_what_is_rare_or_new_is_not_warned_about() -> None:
    for _ in range(10):
        metric("CompileTime").add(1e6)
    count("MarkStep", 10)
    assert debug_log.findings() == []  # the first steps compile
    count("MarkStep", 10)
    assert debug_log.findings() == []  # one in two


def test_one_long_compilation_or_execution_is_warned_about() -> None:
    metric("CompileTime").add(301e9)
    metric("ExecuteTime").add(30e9)
    metric("ExecuteTime").add(30.5e9)
    assert debug_log.findings() == [
        "CompileTime too slow: longest instance took 05m01s000ms000.000us",
        "ExecuteTime too slow: longest instance took 30s500ms000.000us",
    ]


def test_every_step_repeats_what_is_wrong(tell: Tell) -> None:
    def steps() -> None:
        met.clear_all()
        for n in range(12):
            x = torch.ones(31 + n * n, device="xla") * 3
            torch_xla.sync()
            del x

    lines = tell(steps, PT_XLA_DEBUG_LEVEL="1")
    assert [line for line in lines if line.startswith("pt-xla-profiler")] == [
        "pt-xla-profiler: CompileTime too frequent: 11 counts during 11 steps",
        "pt-xla-profiler: CompileTime too frequent: 12 counts during 12 steps",
    ]


PROGRAM = """\
import warnings
import torch, torch_xla; ones = torch.ones(2).to("xla")
warnings.simplefilter("ignore")

def attention(query, key):
    if torch.equal(query, key):
        return query + 1
    return query

def train():
    for step in range(3):
        x = attention(ones, ones)
        attention(x, x)
        torch_xla.sync()
    print(x.sum().item())
    torch.histogramdd(x[:, None], (x,))
    {end}

train()
"""

SUMMARY = f"""\
{EQUALS}
Unlowered Op usage summary (each of these is a context switch: fewer are faster)
Note: _local_scalar_dense reads one number, as .item() and `if` do
{DASHES}
FRAME (count=3):
Unlowered Op: "equal"
Early evaluations of the recorded graph: 3
Python Frames:
  attention (FILE:6)
  train (FILE:12)
  <module> (FILE:19)
{DASHES}
FRAME (count=3):
Unlowered Op: "equal"
Early evaluations of the recorded graph: 3
Python Frames:
  attention (FILE:6)
  train (FILE:13)
  <module> (FILE:19)
{DASHES}
FRAME (count=1):
Unlowered Op: "_local_scalar_dense"
Early evaluations of the recorded graph: 1
Python Frames:
  train (FILE:15)
  <module> (FILE:19)
{DASHES}
FRAME (count=1):
Unlowered Op: "_histogramdd_from_bin_tensors"
Python Frames:
  train (FILE:16)
  <module> (FILE:19)
{DASHES}
{EQUALS}
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["pass", "raise KeyboardInterrupt"], ids=["at exit", "when interrupted"])
def test_the_places_that_read_are_summed_up(end: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(PROGRAM.format(end=end))
    environment = {**os.environ, "PT_XLA_DEBUG_LEVEL": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(file)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == (0 if end == "pass" else -signal.SIGINT), done.stderr
    assert done.stdout == "4.0\n"
    told = [line for line in done.stderr.splitlines() if line.startswith("pt-xla-profiler: ")]
    text = "".join(line.removeprefix("pt-xla-profiler: ") + "\n" for line in told).replace(str(file), "FILE")
    assert text == SUMMARY
