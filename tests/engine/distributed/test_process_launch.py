"""Programs of several processes: how they start, know each other, and end."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from tests.support.fleet import fleet_of
from torch_xla._engine import errors
from torch_xla.utils.utils import get_free_tcp_ports

ROOT = Path(__file__).parents[3]


def who_am_i() -> dict[str, Any]:
    return {
        "places": (xr.global_ordinal(), xr.local_ordinal(), xr.process_index(), xm.get_ordinal()),
        "counts": (xr.world_size(), xr.process_count(), xr.local_process_count(), xr.global_device_count()),
        "own": (xr.addressable_device_count(), torch_xla.device_count(), xr.host_index()),
        "real": torch_xla.real_devices(),
        "masters": (xm.is_master_ordinal(), xm.is_master_ordinal(local=False)),
        "sum": (torch.arange(3.0, device="xla") + 1).tolist(),
    }


def test_each_process_knows_its_place_and_has_one_device() -> None:
    for index, found in enumerate(fleet_of(4).run(who_am_i)):
        assert found == {
            "places": (index,) * 4,
            "counts": (4,) * 4,
            "own": (1, 1, 0),
            "real": [f"CPU:{index}"],
            "masters": (index == 0,) * 2,
            "sum": [1.0, 2.0, 3.0],
        }


def draw() -> list[list[float]]:
    found = []
    for seed in (7, 7 + xr.global_ordinal(), 7):
        torch_xla.manual_seed(seed)
        found.append(torch.rand(3, device="xla").tolist())
    return found


def test_seeds_make_the_processes_draw_alike_or_not() -> None:
    drawn = fleet_of(4).run(draw)
    assert all(same == drawn[0][0] == again for same, _, again in drawn)
    assert len({tuple(own) for _, own, _ in drawn}) == 4


def meet() -> Any:
    index = xr.global_ordinal()
    return (
        xm.rendezvous("first", b"%d" % index),
        xm.mesh_reduce(
            "losses", {"loss": torch.tensor([float(index)], device="xla")}, lambda all: sum(a["loss"] for a in all)
        ),
        xm.do_on_ordinals(lambda a: a + index, (10,), ordinals=[1, 2]),
        xm.rendezvous("last"),
    )


def test_processes_exchange_bytes_and_objects() -> None:
    for index, (first, reduced, there, last) in enumerate(fleet_of(4).run(meet)):
        assert first == [b"0", b"1", b"2", b"3"]
        assert torch.equal(reduced, torch.tensor([6.0]))
        assert there == (10 + index if index in (1, 2) else None)
        assert last == [b""] * 4


def save_in(folder: str) -> list[str]:
    value = {"weight": torch.full((2,), float(xr.global_ordinal()), device="xla")}
    xm.save(value, os.path.join(folder, "master"))
    xm.save(value, os.path.join(folder, f"all-{xr.global_ordinal()}"), master_only=False)
    return sorted(os.listdir(folder))


def test_one_process_saves_or_each(tmp_path: Path) -> None:
    assert fleet_of(4).run(save_in, str(tmp_path)) == [["all-0", "all-1", "all-2", "all-3", "master"]] * 4
    assert torch.equal(torch.load(tmp_path / "master")["weight"], torch.zeros(2))
    assert torch.equal(torch.load(tmp_path / "all-2")["weight"], torch.full((2,), 2.0))


def come_to_different_places() -> str:
    try:
        xm.rendezvous("here" if xr.global_ordinal() else "there")
    except errors.PeerError as error:
        return str(error)
    return ""


def test_a_rendezvous_with_different_tags_names_both() -> None:
    said = fleet_of(4).run(come_to_different_places)
    assert "Process 0 waits for the others at 'there', and process 1 at 'here'" in said[0]
    assert "Process 1 waits for the others at 'here', and process 0 at 'there'" in said[1]


PROGRAM = """
import sys
import torch, torch_xla, torch_xla.runtime as xr, torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp

def main(index, what):
    assert index == xr.local_ordinal()
    if what == "fail":
        if index == 1:
            raise KeyError("what was wrong")
        xm.rendezvous("never")  # the others wait for the one that failed
    if what in ("read", "quit"):
        total = xm.all_reduce("sum", torch.full((3,), index + 1.0, device="xla"))
        if what == "quit" and index == 1:
            sys.exit()
        if index == 0:
            print(total.tolist(), flush=True)
        return  # the other one does its part though it asks for nothing
    if what == "absent":
        if index == 0:
            xm.rendezvous("later")
        return
    if what == "alone":
        xm.rendezvous("begin")
        total = index or xm.all_reduce("sum", torch.ones(3, device="xla"))
        return
    everyone = xm.rendezvous("all", f"{xr.global_ordinal()}/{xr.world_size()}@{xr.host_index()}".encode())
    xm.master_print(*[each.decode() for each in everyone], flush=True)

if __name__ == "__main__":
    if sys.argv[1] in ("launch", "read", "alone", "quit", "absent"):
        torch_xla.launch(main, args=(sys.argv[1],))
    elif sys.argv[1] == "fork":
        xmp.spawn(main, args=("run",), nprocs=2, start_method="fork")
    else:
        context = xmp.spawn(main, args=("run",), nprocs=2, join=False, start_method="fork")
        print(len(context.processes), flush=True)
        while not context.join():
            pass
        try:
            xmp.spawn(main, args=("fail",), nprocs=2, start_method="fork")
        except torch.multiprocessing.ProcessRaisedException as error:
            print(error.error_index, "what was wrong" in str(error), "in main" in str(error))
"""


def run_program(folder: Path, command: list[str], **settings: str) -> list[str]:
    result = run_alone(folder / "program.py", command, settings)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def run_alone(
    program: Path, command: list[str], settings: dict[str, str], source: str = PROGRAM
) -> "subprocess.CompletedProcess[str]":
    program.write_text(source)
    return subprocess.run(
        [*command[:-1], str(program), command[-1]],
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "PJRT_DEVICE": "CPU",
            "OMP_NUM_THREADS": "1",
            **settings,
        },
        capture_output=True,
        text=True,
        timeout=250,
    )


TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


@pytest.mark.slow
def test_a_context_is_joined_later_and_what_a_child_raises_arrives_and_ends_the_others(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    told = run_program(tmp_path, [sys.executable, "fail"], TMPDIR=str(temporary))
    assert told == ["2", "0/2@0 1/2@0", "1 True True"]  # and long before the others would give up
    assert not list(temporary.iterdir())


@pytest.mark.slow
def test_torchrun_starts_the_processes(tmp_path: Path) -> None:
    assert run_program(tmp_path, [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "launch"]) == ["0/2@0 1/2@0"]


# A process that has only recorded a collective meets the others when it ends, and listens in threads.
needs_threads_at_the_exit = pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 2), reason="this release of Python starts no thread while it ends"
)


@needs_threads_at_the_exit
@pytest.mark.slow
@pytest.mark.parametrize("command", [[*TORCHRUN, "--standalone", "--nproc-per-node", "2"], [sys.executable]])
def test_a_process_that_ends_does_its_part_of_what_another_reads(tmp_path: Path, command: list[str]) -> None:
    # XLA's Gloo writes its connections to the same stream.
    assert run_program(tmp_path, [*command, "read"], CPU_NUM_DEVICES="2")[-1] == "[3.0, 3.0, 3.0]"


@pytest.mark.slow
def test_a_process_may_end_by_exit(tmp_path: Path) -> None:
    assert run_program(tmp_path, [sys.executable, "quit"], CPU_NUM_DEVICES="2")[-1] == "[3.0, 3.0, 3.0]"


@pytest.mark.slow
def test_a_process_that_ends_without_the_others_is_not_waited_for(tmp_path: Path) -> None:
    result = run_alone(tmp_path / "program.py", [sys.executable, "absent"], {"CPU_NUM_DEVICES": "2"})
    assert result.returncode != 0
    assert "PeerError: Process 1 of 2 ended and did not use the device" in result.stderr


FORKS = """
import multiprocessing, os, sys
import torch, torch.distributed as dist, torch_xla
import torch_xla.distributed.xla_backend
from torch.distributed.elastic.utils.distributed import get_free_port

def main(rank, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("xla", init_method="env://")
    tensor = torch.full((3,), rank + 1.0, device="xla")
    dist.all_reduce(tensor)
    if rank == 0:
        print(tensor.tolist(), flush=True)  # the other one reads nothing

if __name__ == "__main__":
    context, port = multiprocessing.get_context(sys.argv[1]), get_free_port()
    processes = [context.Process(target=main, args=(rank, port)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    sys.exit([process.exitcode for process in processes] != [0, 0])
"""


@needs_threads_at_the_exit
@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_so_does_one_that_multiprocessing_has_made(tmp_path: Path, method: str) -> None:
    result = run_alone(tmp_path / "program.py", [sys.executable, method], {}, FORKS)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[3.0, 3.0, 3.0]"


@pytest.mark.slow
@pytest.mark.parametrize("command", [[*TORCHRUN, "--standalone", "--nproc-per-node", "2"], [sys.executable]])
def test_a_process_that_exchanges_with_nobody_at_its_end_fails(tmp_path: Path, command: list[str]) -> None:
    result = run_alone(tmp_path / "program.py", [*command, "alone"], {"CPU_NUM_DEVICES": "2"})
    assert result.returncode != 0
    assert "PeerError" in result.stderr and "collective" in result.stderr


@pytest.mark.slow
def test_launch_starts_a_process_for_each_device(tmp_path: Path) -> None:
    found = run_program(tmp_path, [sys.executable, "launch"], CPU_NUM_DEVICES="4")
    assert found == ["0/4@0 1/4@0 2/4@0 3/4@0"]


@pytest.mark.slow
def test_several_agents_are_several_hosts(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    agents = []
    (port,) = get_free_tcp_ports()
    for node in range(2):
        command = [*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(node)]
        command += ["--master-addr", "127.0.0.1", "--master-port", str(port), str(tmp_path / "program.py"), "launch"]
        settings = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PJRT_DEVICE": "CPU"}
        agents.append(
            subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        said = [agent.communicate(timeout=250) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert said[0][0].splitlines() == ["0/2@0 1/2@1"]


def test_a_program_in_a_process_of_a_program_is_refused() -> None:
    said = fleet_of(4).run(spawn_again)
    assert all("cannot start the processes of a program" in each for each in said)


def spawn_again() -> str:
    try:
        xmp.spawn(print, nprocs=2)
    except RuntimeError as error:
        return str(error)
    return ""
