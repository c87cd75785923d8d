"""Processes that need not import PyTorch, JAX and this package again: forks of a server that has done nothing else.

A test in a separate process spends half of its time before its first line. Tests of how a process starts or ends, and
tests with settings that are read at import, such as the number of virtual devices, use `subprocess`.
"""

import atexit
import faulthandler
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
import warnings
from multiprocessing.context import ForkServerContext
from pathlib import Path

import torch.multiprocessing

_IMPORTED = [
    "numpy",
    "torch_xla",
    "torch_xla.core.xla_model",
    "torch_xla.debug.metrics",
    "torch_xla.distributed.xla_backend",
    "torch_xla.interop",
    "tests.support.fleet",
]


def context() -> ForkServerContext:
    """Starts processes that have imported this package and used no device."""
    found: ForkServerContext = torch.multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(_IMPORTED)
    return found


def run(
    program: str, *, environment: dict[str, str], folder: Path, seconds: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run `python -W error program` in a folder, and return its output and exit status; `program` is a file there.

    Raises `TimeoutError` if it takes longer than `seconds`, and kills it.
    """
    with tempfile.TemporaryDirectory() as told:
        printed, complained = Path(told, "stdout"), Path(told, "stderr")
        process = context().Process(
            target=_main, args=(program, environment, str(folder), str(printed), str(complained), seconds), daemon=False
        )
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutError(f"{program} did not end within {seconds} s:\n{complained.read_text()}")
        return subprocess.CompletedProcess(program, process.exitcode, printed.read_text(), complained.read_text())


def _main(
    program: str, environment: dict[str, str], folder: str, printed: str, complained: str, seconds: float
) -> None:
    for number, path in ((1, printed), (2, complained)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    faulthandler.dump_traceback_later(seconds + 60, exit=True)  # if the test's process is gone
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv[:] = [program]
    warnings.resetwarnings()
    warnings.simplefilter("error")
    code = 0
    try:
        runpy.run_path(os.path.join(folder, program), run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()  # a fork does not come to them
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
