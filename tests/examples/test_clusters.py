"""Recipes for schedulers: their files are valid, and their commands start the processes that the engine counts."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "clusters"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
JOB_SETS = sorted(FOLDER.glob("*.yaml"))

# What a process finds out about its place from the variables that torchrun has set.
PLACE = """
from torch_xla._engine.processes import identity
place = identity.place()
print("place", place.index, place.count, place.local_index, place.local_count, place.host, place.address, flush=True)
"""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_are_valid_shell(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)


def command(folder: Path, name: str, text: str) -> None:
    """Put a command of this name before those of the system."""
    path = folder / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def options_of(script: str, folder: Path, **settings: str) -> dict[str, str]:
    """Return the options that a script gives to torchrun, and what it adds to the environment as `$NAME`."""
    command(folder, "torchrun", 'printf "%s\\n" "$@"; printf "PJRT_DEVICE=%s\\n" "$PJRT_DEVICE"')
    command(folder, "srun", 'while [[ "$1" == --* ]]; do shift; done; exec "$@"')
    command(folder, "scontrol", 'printf "node7\\nnode8\\n"')
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "TPU", "MEGASCALE", "PJRT"))
    }
    done = subprocess.run(
        ["bash", str(FOLDER / script), "train.py", "--epochs", "3"],
        env={**clean, **settings, "PATH": f"{folder}:{os.environ['PATH']}"},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[-4:-1] == ["train.py", "--epochs", "3"]
    return dict(line.lstrip("-").split("=", 1) for line in [*lines[:-4], lines[-1]])


def test_slurm_gives_torchrun_its_nodes(tmp_path: Path) -> None:
    settings = {
        "SLURM_JOB_NODELIST": "node[7-8]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_ID": "12",
        "SLURM_GPUS_ON_NODE": "8",
    }
    found = options_of("slurm.sh", tmp_path, **settings)
    assert (found["nnodes"], found["nproc-per-node"], found["rdzv-id"]) == ("2", "8", "12")
    assert found["rdzv-endpoint"] == "node7:29500"


def test_the_options_of_sbatch_are_those_that_it_knows() -> None:
    known = {"job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time", "signal", "requeue"}
    lines = (FOLDER / "slurm.sh").read_text().splitlines()
    options = [index for index, line in enumerate(lines) if line.startswith("#SBATCH ")]
    assert options == list(range(1, 1 + len(options)))  # sbatch reads them up to the first command
    assert {re.match(r"#SBATCH --([a-z-]+)", lines[index])[1] for index in options} <= known  # type: ignore[index]


def test_a_slice_of_tpus_gives_torchrun_its_machines(tmp_path: Path) -> None:
    settings = {"TPU_WORKER_HOSTNAMES": "t0,t1,t2,t3", "TPU_WORKER_ID": "2"}
    one = options_of("tpu.sh", tmp_path, **settings)
    assert (one["nnodes"], one["node-rank"], one["master-addr"], one["PJRT_DEVICE"]) == ("4", "2", "t0", "TPU")
    more = {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1", "MEGASCALE_COORDINATOR_ADDRESS": "first:8080"}
    two = options_of("tpu.sh", tmp_path, **settings, **more)
    assert (two["nnodes"], two["node-rank"], two["master-addr"]) == ("8", "6", "first")


def job_set(path: Path) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="needs pip install pyyaml")
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


@pytest.mark.parametrize("path", JOB_SETS, ids=lambda path: path.name)
def test_job_sets_have_jobs_that_kubernetes_accepts(path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs pip install kubernetes-validate")
    found = job_set(path)
    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (job,) = found["spec"]["replicatedJobs"]
    template = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}
    validate.validate(template, "1.31", strict=True)
    with pytest.raises(validate.ValidationError):
        validate.validate({**template, "spec": {**template["spec"], "parallel": 4}}, "1.31", strict=True)


@pytest.mark.slow
def test_pods_of_a_job_set_are_the_machines_of_a_program(tmp_path: Path) -> None:
    (container,) = job_set(FOLDER / "jobset.yaml")["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"][
        "containers"
    ]
    (tmp_path / "place.py").write_text(PLACE)
    command(tmp_path, "torchrun", f'exec "{sys.executable}" -m torch.distributed.run "$@"')
    port = str(20000 + os.getpid() % 10000)
    settings = {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path),
        "NNODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GPUS": "2",
        "SCRIPT": str(tmp_path / "place.py"),
    }  # fmt: skip
    pods = [
        subprocess.Popen(
            [*container["command"], *container["args"]],
            env={**settings, "JOB_COMPLETION_INDEX": str(index)}, stdout=subprocess.PIPE, text=True,
        )
        for index in range(2)
    ]  # fmt: skip
    printed = "".join(pod.communicate(timeout=300)[0] for pod in pods)
    places = re.findall(r"place (\d) 4 (\d) 2 (\d) 127.0.0.1", printed)
    assert sorted(places) == [("0", "0", "0"), ("1", "1", "0"), ("2", "0", "1"), ("3", "1", "1")], printed
