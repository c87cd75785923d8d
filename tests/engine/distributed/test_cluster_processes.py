"""A process that a cluster has started knows its place."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import HashStore

from torch_xla._engine.compat.names import jax_clusters
from torch_xla._engine.distributed import cluster_processes
from torch_xla._engine.errors import PeerError
from torch_xla._engine.runtime import platform

ROOT = Path(__file__).parents[3]

PROGRAM = """
import os, torch, torch_xla, torch.distributed as dist
import torch_xla.core.xla_model as xm, torch_xla.runtime as xr
import torch_xla.distributed.xla_backend

def main(index):
    total = xm.all_reduce(xm.REDUCE_SUM, torch.full((2,), xr.global_ordinal() + 1.0, device="xla")).tolist()
    print(index, xr.global_ordinal(), xr.world_size(), xr.local_process_count(), xr.host_index(), total, flush=True)

if "MASTER_PORT" in os.environ:
    dist.init_process_group("xla", init_method="env://")
    main(xr.local_ordinal())
else:
    torch_xla.launch(main)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def variables(how: str, rank: int, count: int, port: int) -> dict[str, str]:
    first = 65535 - 2**12 + 1  # JAX takes the ports from here on by the number of the job
    if how == "slurm":
        return {
            "SLURM_JOB_ID": str(port - first), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": str(count),
            "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_STEP_NUM_NODES": "1",
        }  # fmt: skip
    if how == "ompi":
        return {
            "OMPI_MCA_orte_hnp_uri": f"{(port - first) * 2**12}.0;tcp://127.0.0.1:34911",
            "OMPI_COMM_WORLD_SIZE": str(count), "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        }  # fmt: skip
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(count)}


@pytest.mark.parametrize("how", ["slurm", "ompi"])
def test_a_job_says_which_process_this_is(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert jax_clusters.job() is None
    for name, value in variables(how, 2, 4, 65000).items():
        monkeypatch.setenv(name, value)
    job = jax_clusters.job()
    assert job is not None and (job.cluster, job.rank, job.size) == (how, 2, 4)
    assert job.address() in ("localhost:65000", "127.0.0.1:65000")


def test_a_job_of_one_process_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables("slurm", 0, 1, 65000).items():
        monkeypatch.setenv(name, value)
    assert jax_clusters.job() is None


@pytest.mark.slow
@pytest.mark.parametrize("how", ["slurm", "ompi", "env"])
def test_processes_of_others_find_each_other(tmp_path: Path, how: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    port = free_port() if how == "env" else 65535 - free_port() % 1000
    common = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "program.py")], env={**common, **variables(how, rank, 2, port)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=200) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], said
    for rank, (out, _) in enumerate(said):
        assert out.splitlines()[-1] == f"{rank} {rank} 2 2 0 [3.0, 3.0]"


@pytest.mark.parametrize(("other", "said"), [(None, "waited 1 s for process 1 to start"), (3, "process 1 one of 3")])
def test_who_does_not_join_is_named(other: int | None, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIST_SERVICE_START_TIMEOUT_IN_SEC", "1")
    monkeypatch.setattr(platform, "is_started", lambda: False)
    store = HashStore()
    if other is not None:
        store.set("torch_xla/host/1", f'[{other}, "elsewhere"]')
    with pytest.raises(PeerError, match=said):
        cluster_processes.join(store, 0, 2)
