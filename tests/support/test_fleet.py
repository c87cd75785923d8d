"""Fleets of processes that tests share."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint

import torch_xla.distributed.xla_backend  # noqa: F401  (registers the backend)
from tests.support import fleet
from tests.support.fleet import fleet_of


def failing_first(mark: str, text: str) -> int:
    if not os.path.exists(mark):
        with open(mark, "w"):
            raise RuntimeError(text)
    return os.getpid()


def test_a_fleet_that_failed_is_not_used_again(tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    with pytest.raises(AssertionError, match=r"in process 0 of 1: Traceback[\s\S]*of the test"):
        fleet_of(1).run(failing_first, mark, "of the test")
    (first,) = fleet_of(1).run(failing_first, mark, "")
    assert fleet_of(1).run(failing_first, mark, "") == [first]
    with pytest.raises(AssertionError):
        fleet_of(1).run(failing_first, mark + "2", "of the test")
    assert fleet_of(1).run(failing_first, mark, "") != [first]


def test_what_did_not_connect_runs_once_more_and_is_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="failing_first runs once more, since Gloo did not connect"):
        assert len(fleet_of(1).run(failing_first, str(tmp_path / "mark"), "Gloo connectFullMesh failed with x")) == 1
    with pytest.warns(UserWarning), pytest.raises(AssertionError, match="Gloo connectFullMesh failed"):
        fleet_of(1).run(failing_always, "Gloo connectFullMesh failed with x")


def failing_always(text: str) -> None:
    raise RuntimeError(text)


def loading_what_is_not_there(folder: str) -> None:
    dist.checkpoint.load({"w": torch.zeros(1)}, checkpoint_id=folder, no_dist=True)


def test_the_error_of_a_checkpoint_is_told(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"in process 0 of 1: Traceback[\s\S]*CheckpointException"):
        fleet_of(1).run(loading_what_is_not_there, str(tmp_path / "nothing"))


def failing_in_the_second(text: str) -> float:
    if not dist.is_initialized():
        dist.init_process_group("xla", init_method="xla://")
    if dist.get_rank() == 1:
        raise RuntimeError(text)
    total = torch.ones(1, device="xla")
    dist.all_reduce(total)
    return total.item()


def test_a_process_that_waits_for_one_that_failed_hides_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "AFTER_FAILURE", 2)
    with pytest.raises(
        AssertionError, match=r"0 of 2: no answer within 2 s of that\nin process 1 of 2: [\s\S]*it fails"
    ):
        fleet_of(2).run(failing_in_the_second, "it fails", seconds=100)
