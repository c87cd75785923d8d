"""The launcher for pods of TPUs before PJRT, kept so that its error explains how to start a program now."""

import argparse
from typing import NoReturn

_ADVICE = (
    "torch_xla.distributed.xla_dist started a program on every machine of a pod by its own connections, which is over "
    "since PJRT. Start it on all machines at once, and the processes find each other: "
    "`gcloud compute tpus tpu-vm ssh NAME --worker=all --command='python train.py'` on TPUs, `torchrun --nnodes=N "
    "--nproc-per-node=M --rdzv-endpoint=HOST:PORT train.py`, `srun` or `mpirun` elsewhere."
)


def get_args_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments, which `accelerate` fills in before it starts anything.

    >>> from torch_xla.distributed import xla_dist
    >>> xla_dist.get_args_parser().parse_args(["--tpu", "pod", "--", "python", "train.py"]).positional
    ['python', 'train.py']
    """
    parser = argparse.ArgumentParser(description=_ADVICE)
    parser.add_argument("--tpu", help="the name of the pod")
    parser.add_argument("--vm", help="the name of the machines")
    parser.add_argument("--docker-image", default="", help="the image to run")
    parser.add_argument("--env", action="append", default=[], help="a variable for the program, as NAME=VALUE")
    parser.add_argument("--restart-tpuvm-pod-server", action="store_true", help="restart the server on each machine")
    parser.add_argument("positional", nargs="*", help="the program and its arguments")
    return parser


def resolve_and_execute(config: object) -> NoReturn:
    """Raise `NotImplementedError` with an explanation of how to start a program on several machines."""
    raise NotImplementedError(_ADVICE)


if __name__ == "__main__":
    get_args_parser().error(_ADVICE)
