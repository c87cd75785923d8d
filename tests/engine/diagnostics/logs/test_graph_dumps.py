"""Graphs, HLO and metrics go where the settings say, in the forms of the documents."""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.debug.profiler as xp
from torch_xla._engine.diagnostics.logs import switches

ROOT = Path(__file__).parents[4]

Use = Callable[..., None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Use]:
    """Makes settings and turns on what they ask for."""
    used: list[str] = []

    def set_to(**settings: object) -> None:
        torch_xla.sync()
        used.extend(settings)
        for name, value in settings.items():
            monkeypatch.setenv(name, str(value))
        switches.apply_settings()

    yield set_to
    for name in used:
        monkeypatch.delenv(name)
    switches.apply_settings()


def step(n: int) -> None:
    x = torch.ones(n).to("xla")
    y = (x * 2.5).sum()
    torch_xla.sync()
    del x, y


LINE_OF_STEP = inspect.getsourcelines(step)[1]
DUMP = """\
[ScheduleSyncTensorsGraph]
TensorsGraphInfo:
  sync (TORCH_XLA:0)
  step (HERE:%d)
  FRAMES

Root Hashes: (HASH)

## BEGIN_GRAPH
%s
Graph Hash: HASH

## END_GRAPH

"""
GRAPH = """\
IR {
  %0 = f32[61] xla::device_data()
  %1 = f32[61] aten::mul(%0), other=2.5
  %2 = f32[] aten::sum(%1), ROOT=0
}
"""


def with_places(dump: str) -> str:
    dump = re.sub(re.escape(torch_xla.__file__) + r":\d+", "TORCH_XLA:0", dump).replace(__file__, "HERE")
    dump = re.sub(r"\b[0-9a-f]{32}\b", "HASH", dump)
    return re.sub(r"(  step \(.*\)\n)(?:  .*\(.*\)\n)+", r"\1  FRAMES\n", dump)


def test_every_graph_that_runs_is_appended_to_the_file(use: Use, tmp_path: Path) -> None:
    use(XLA_SAVE_TENSORS_FILE=tmp_path / "graphs")
    for _ in range(2):
        step(61)
    assert os.listdir(tmp_path) == ["graphs.0"]  # the ordinal
    one = DUMP % (LINE_OF_STEP + 3, GRAPH)
    assert with_places((tmp_path / "graphs.0").read_text()) == one + one


def test_the_lines_of_the_program_are_in_the_graph_on_demand(use: Use, tmp_path: Path) -> None:
    use(XLA_SAVE_TENSORS_FILE=tmp_path / "graphs", XLA_IR_DEBUG=1)
    step(62)
    text = (tmp_path / "graphs.0").read_text()
    assert f"%1 = f32[62] aten::mul(%0), other=2.5, location=step@{__file__}:{LINE_OF_STEP + 2}\n" in text


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"XLA_SAVE_TENSORS_FMT": "dot"}, 'digraph G {\n  node [shape=box]\n  node0 [label="f32[63] xla::'),
        ({"XLA_SAVE_TENSORS_FMT": "hlo"}, "## BEGIN_GRAPH\nHloModule "),
        ({"XLA_SAVE_TENSORS_FMT": "hlo"}, "#OUTPUT_SHARDING_BEGIN\n{replicated}\n#OUTPUT_SHARDING_END\n\nGraph Hash: "),
        ({"XLA_SAVE_TENSORS_FMT": "hlo", "XLA_DUMP_POST_OPTIMIZATIONS": "1"}, "is_scheduled=true"),
        ({"XLA_SAVE_TENSORS_FMT": "stablehlo"}, "## BEGIN_GRAPH\nmodule @jit_program "),
    ],
)  # fmt: skip
def test_the_other_languages(settings: dict[str, str], part: str, use: Use, tmp_path: Path) -> None:
    use(XLA_SAVE_TENSORS_FILE=tmp_path / "graphs", **settings)
    step(63)
    assert part in (tmp_path / "graphs.0").read_text()


def test_another_language_is_refused(use: Use, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as error:
        use(XLA_SAVE_TENSORS_FILE=tmp_path / "graphs", XLA_SAVE_TENSORS_FMT="png")
    assert str(error.value) == "XLA_SAVE_TENSORS_FMT is 'png'; it must be one of text, dot, hlo, stablehlo"


def test_a_file_that_cannot_be_written_does_not_stop_the_program(
    use: Use, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    use(XLA_SAVE_TENSORS_FILE=tmp_path / "nowhere" / "graphs")
    step(64)
    assert "No such file or directory" in caplog.text
    assert torch.ones(3, device="xla").sum().item() == 3
    assert met.counter_value("ListenerFailed") == 2
    met.clear_counters()  # here that is as it should be


def test_equal_computations_have_equal_root_hashes(use: Use, tmp_path: Path) -> None:
    use(XLA_SAVE_TENSORS_FILE=tmp_path / "graphs")
    x = torch.ones(65).to("xla")
    y = (x * 2.5).sum()
    torch_xla.sync()
    z, w = (x * 2.5).sum(), x + 1
    torch_xla.sync()
    found = re.findall(r"Root Hashes: \((.*)\)", (tmp_path / "graphs.0").read_text())
    first, second = (hashes.split(", ") for hashes in found)
    assert len(first) == 1 and len(second) == 2 and first[0] == second[0] != second[1]
    del y, z, w


def test_the_lines_of_the_program_are_in_listings_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    y = torch.ones(3).to("xla") * 2
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    place = f"location={inspect.currentframe().f_code.co_name}@{__file__}:{line}"  # type: ignore[union-attr]
    text = torch_xla._XLAC._get_xla_tensors_text
    assert "location" not in text([y])
    for setting in ("XLA_IR_DEBUG", "XLA_HLO_DEBUG"):
        with monkeypatch.context() as patch:
            patch.setenv(setting, "1")
            assert place in text([y]) and torch_xla._XLAC._get_ir_debug()


def test_named_blocks_are_in_listings_on_demand(use: Use, tmp_path: Path) -> None:
    x = torch.ones(68).to("xla")
    use(XLA_SAVE_TENSORS_FILE=tmp_path / "graphs", XLA_IR_DEBUG=1)
    with xp.Trace("encoder"), xp.Trace("attention"):
        y = x * 2.5
    z = y.cos()
    listing = torch_xla._XLAC._get_xla_tensors_text([z])
    assert "aten::mul(%0), other=2.5, scope=encoder/attention, location=test_named_blocks" in listing
    assert "aten::cos(%1), location=" in listing
    torch_xla.sync()
    assert "scope=encoder/attention" in (tmp_path / "graphs.0").read_text()


def test_the_lines_of_the_program_are_in_stablehlo_and_hlo_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3).to("xla")
    y = torch.where(x > 0, x, x.var())
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    assert "loc(" not in xm.get_stablehlo([y])
    assert "metadata" not in torch_xla._XLAC._get_xla_tensors_hlo([y])
    monkeypatch.setenv("XLA_HLO_DEBUG", "1")
    stablehlo = xm.get_stablehlo([y])
    assert f'loc("{__file__}":{line}:' in stablehlo and "aten::var" in stablehlo and "program.py" not in stablehlo
    hlo = torch_xla._XLAC._get_xla_tensors_hlo([y])
    assert f'"{__file__}"' in hlo and f"line={line} " in hlo and "program.py" not in hlo
    [selection] = re.findall(r'op_name="jit\(program\)/(aten::where[^"]*)" stack_frame_id=\d+', hlo)
    assert selection == "aten::where/jit(_where)"


def test_the_metrics_are_appended_at_every_step(use: Use, tmp_path: Path) -> None:
    file = tmp_path / "metrics.txt"
    use(XLA_METRICS_FILE=file)
    met.clear_all()
    for _ in range(2):
        step(66)
    reports = re.split(r"\[MetricsData; step=\d+\]\n", file.read_text())
    assert reports[0] == "" and len(reports) == 3
    assert "Counter: MarkStep\n  Value: 1\n" in reports[1] and "Counter: MarkStep\n  Value: 2\n" in reports[2]
    assert reports[2].endswith("\n\n")


PROGRAM = """
import torch, torch_xla
x = torch.ones(512, 512).to("xla")
for _ in range(8):
    x = x @ x / 512
torch_xla.sync()
print(x.untyped_storage().value.buffer.is_ready())
"""


@pytest.mark.slow
def test_settings_of_a_process_reach_xla_and_the_sync(tmp_path: Path) -> None:
    settings = {"XLA_FLAGS": f"--xla_dump_to={tmp_path}", "XLA_SYNC_WAIT": "1", "XLA_PERSISTENT_CACHE_PATH": ""}
    environment = {**os.environ, **settings, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\n"  # the step has ended
    names = [file.name for file in tmp_path.iterdir()]
    assert any("jit_program" in name and "before_optimizations.txt" in name for name in names)
    assert any("jit_program" in name and name.endswith("after_optimizations.txt") for name in names)
