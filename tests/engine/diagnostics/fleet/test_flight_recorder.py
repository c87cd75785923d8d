"""PyTorch's analyser reads what the flight recorder writes."""

import gc
import os
import pickle
import signal
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig
from torch.distributed.flight_recorder.components.loader import read_dir

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from tests.support.fleet import Fleet
from torch_xla._engine.diagnostics.fleet import flight_recorder
from torch_xla._engine.errors import PeerError

# What PyTorch's own recorder writes, in a process group of Gloo.
KEYS = {
    "frames", "record_id", "pg_id", "process_group", "thread_name", "thread_id", "collective_seq_id", "p2p_seq_id",
    "op_id", "profiling_name", "time_created_ns", "input_sizes", "input_dtypes", "output_sizes", "output_dtypes",
    "state", "time_discovered_started_ns", "time_discovered_completed_ns", "retired", "timeout_ms", "is_p2p",
}  # fmt: skip


def analysed(folder: Path) -> Any:
    """Let PyTorch's analyser compare the dumps in a folder."""
    arguments = JobConfig().parse_args([str(folder), "--prefix", "rank_"])
    try:
        details, version = read_dir(arguments)
    finally:
        gc.enable()  # the analyser turns it off
    return build_db(details, arguments, version)


def exchange(folder: str) -> dict[str, Any]:
    x = torch.ones(2, 3, device="xla")
    for _ in range(2):
        total = xm.all_reduce(xm.REDUCE_SUM, x)
        gathered = xm.all_gather(x, dim=0)
        part = xm.reduce_scatter(xm.REDUCE_SUM, torch.ones(3, 3, device="xla"), 1.0, 0, xr.world_size())
        torch_xla.sync()
    assert total.sum().item() == 6 * xr.world_size() and gathered.shape[0] == 2 * xr.world_size()
    assert part.tolist()
    torch_xla.debug.dump_flight_recorder(f"{folder}/rank_")
    return flight_recorder.record()


def ask_by_signal(folder: str) -> bool:
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = f"{folder}/rank_"
    os.kill(os.getpid(), signal.SIGQUIT)
    path = Path(f"{folder}/rank_{xr.global_ordinal()}")
    end = time.monotonic() + 30
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    return path.exists()


def do_not_come(folder: str) -> str:
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = f"{folder}/rank_"
    os.environ["XLA_COLLECTIVE_TIMEOUT"] = "3"
    x = torch.ones(5, device="xla")
    try:
        if xr.global_ordinal() == 1:
            time.sleep(12)
            xm.rendezvous("late")
        xm.all_reduce(xm.REDUCE_MAX, x).tolist()
    except PeerError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_pytorchs_analyser_reads_the_dumps_and_finds_who_did_not_come(tmp_path: Path) -> None:
    fleet = Fleet(3)
    folders = {name: tmp_path / name for name in ("demand", "signal", "timeout")}
    for folder in folders.values():
        folder.mkdir()
    try:
        for record in fleet.run(exchange, str(folders["demand"])):
            assert all(entry.keys() == KEYS for entry in record["entries"])
            names = [entry["profiling_name"] for entry in record["entries"]]
            assert names == ["gloo:all_reduce", "gloo:all_gather", "gloo:reduce_scatter"] * 2
            assert {entry["state"] for entry in record["entries"]} == {"completed"}
            frames = record["entries"][1]["frames"]
            assert frames[0]["name"] == "exchange" and frames[0]["filename"] == __file__
            assert record["entries"][0]["input_sizes"][0] == [2, 3]
        found = analysed(folders["demand"])
        assert len(found.collectives) == 6 and all(each.pass_check for each in found.collectives)
        assert len(found.ncclcalls) == 18
        assert fleet.run(ask_by_signal, str(folders["signal"])) == [True] * 3
        assert len(analysed(folders["signal"]).collectives) == 6
        assert all("did not come" in said for said in fleet.run(do_not_come, str(folders["timeout"])))
        missing = [
            each for each in analysed(folders["timeout"]).collectives if not each.pass_check or each.missing_ranks
        ]
        assert [each.missing_ranks for each in missing] == [{1}]
        assert missing[0].collective_name == "gloo:all_reduce" and missing[0].collective_state == "started"
    finally:
        fleet.kill()


def test_a_process_alone_has_nothing_to_show_and_writes_it(tmp_path: Path) -> None:
    path = torch_xla.debug.dump_flight_recorder(f"{tmp_path}/rank_")
    with open(path, "rb") as file:
        found = pickle.load(file)
    assert found["entries"] == [] and found["pg_config"]["0"]["ranks"] == "[0]"


def test_the_folder_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = Path(flight_recorder.default_prefix()).parent
    assert folder.parent == tmp_path and stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    with pytest.raises(PermissionError, match="TORCH_FR_DUMP_TEMP_FILE"):
        flight_recorder.default_prefix()
