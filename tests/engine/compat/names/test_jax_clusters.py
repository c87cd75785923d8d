"""A process learns its place from the variables of a cluster, and from nothing where there are none."""

import pytest

from torch_xla._engine.compat.names import jax_clusters

SLURM = {
    "SLURM_JOB_ID": "1234", "SLURM_STEP_NODELIST": "node[7-9]", "SLURM_NTASKS": "6", "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0", "SLURM_STEP_NUM_NODES": "3",
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SLURM, "OMPI_MCA_orte_hnp_uri", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_outside_of_one_there_is_no_job() -> None:
    assert jax_clusters.job() is None


def test_slurm_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    job = jax_clusters.job()
    assert job is not None and (job.cluster, job.rank, job.size) == ("slurm", 4, 6)
    host, port = job.address().split(":")
    assert host == "node7" and 0 < int(port) < 1 << 16


def test_a_job_of_one_process_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_NTASKS", "1")
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert jax_clusters.job() is None
