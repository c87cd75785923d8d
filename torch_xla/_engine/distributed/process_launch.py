"""Start the processes of a program on this machine, one for each device."""

import os
import pickle
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.multiprocessing.spawn import ProcessContext, ProcessExitedException, ProcessRaisedException, start_processes

from .. import config
from ..errors import PeerError
from ..processes import coordination, identity, spmd_mode
from ..processes.identity import Place
from ..runtime import platform, platform_selection, tpu_chips
from .cluster_processes import join_job

# So long, in seconds, the others may take to raise that one of them is gone.
_GRACE = 10.0
# The beginning of the last line of a traceback that reports the failure of another process.
_SECOND_HAND = f"{PeerError.__module__}.{PeerError.__qualname__}: "


def start(
    fn: Callable[..., object], args: Iterable[object], count: int, join: bool, daemon: bool, start_method: str
) -> ProcessContext | None:
    """Call `fn(index, *args)` in `count` new processes, which know each other."""
    _refuse_processes_of_processes()
    if start_method == "fork" and platform.is_started():
        raise RuntimeError(
            f"spawn(start_method={start_method!r}): this process has used an xla device, and a fork of it cannot. Use "
            "start_method='spawn' or 'forkserver', or call spawn() before anything touches a device."
        )
    folder = tempfile.mkdtemp(prefix="torch_xla-")
    meeting = os.path.join(folder, "store")
    service = None
    try:
        if count > 1:
            service = coordination.serve("127.0.0.1", count)
            coordination.tell_address(FileStore(meeting), service)
        started = start_processes(_run, (count, meeting, fn, tuple(args)), count, False, daemon, start_method)
    except BaseException:
        _clean_up(folder, service, ())
        raise
    context = Context(started.processes, started.error_files)
    weakref.finalize(context, _clean_up, folder, service, started.error_files)
    if not join:
        return context
    try:
        _join(context)
    except BaseException:
        _end(context)
        raise
    return None


def _join(context: ProcessContext) -> None:
    while not context.join():
        pass


class Context(ProcessContext):
    """The processes that were started, which `join()` waits for."""

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for processes to end; return whether all have ended.

        Raises what the first that failed raised, as `torch.multiprocessing` does, when the others have had the time to
        say which it was (10 s, or `grace_period`), and have been ended.
        """
        try:
            return bool(super().join(timeout, _GRACE if grace_period is None else grace_period))
        except ProcessRaisedException as error:
            # If one process fails, others fail too. Raise the error of the first one that failed by itself.
            first = next((index for index, text in self._raised().items() if _SECOND_HAND not in text), None)
            if first is None or _SECOND_HAND not in str(error):
                raise
            said = f"\n\n-- Process {first} terminated with the following error:\n{self._raised()[first]}"
            raise ProcessRaisedException(said, first, self.processes[first].pid) from None
        except ProcessExitedException as error:
            report = next((text for text in self._raised().values() if _SECOND_HAND in text), "")
            if report:
                said = f"{error}\n{report.rpartition(_SECOND_HAND)[2].strip()}"
                raise ProcessExitedException(
                    said, error.error_index, error.error_pid, error.exit_code, error.signal_name
                ) from None
            raise

    def _raised(self) -> dict[int, str]:
        """Return the traceback of each process that raised something."""
        found = {}
        for index, path in enumerate(self.error_files):
            if os.path.exists(path):
                with open(path, "rb") as file:  # written by our own child in a private folder
                    found[index] = str(pickle.load(file))
        return found


def _clean_up(folder: str, service: Any, error_files: Iterable[str]) -> None:
    if service is not None:
        service.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
    for path in error_files:  # PyTorch leaves those of processes that raised
        with suppress(FileNotFoundError):
            os.unlink(path)


def launch(fn: Callable[..., object], args: Iterable[object], start_method: str, alone: bool) -> None:
    """Call `fn(index, *args)` for each device, and wait for the end.

    The call runs in this process if it is `alone`, or if `torchrun`, SLURM or MPI have started it, else in new ones.
    """
    if config.torchrun() is not None:
        fn(identity.place().local_index, *args)
    elif alone:
        fn(0, *args)
    elif join_job():
        fn(identity.place().local_index, *args)
    elif spmd_mode.is_on():
        raise NotImplementedError(
            "launch(): under SPMD one process drives all devices of the machine. Call the function itself, or start "
            "several processes by torchrun."
        )
    else:
        start(fn, args, checked_count(None), True, False, start_method)


def results(fn: Callable[..., Any], args: Any, kwargs: dict[str, Any], start_method: str) -> dict[int, Any]:
    """Return the results of `fn(*args, **kwargs)` in each process, by its number."""
    count = checked_count(None)
    if count == 1:
        return {0: fn(*args, **kwargs)}
    with tempfile.TemporaryDirectory(prefix="torch_xla-") as folder:
        start(_keep_result, (folder, fn, args, kwargs), count, True, False, start_method)
        found = {}
        for index in range(count):
            with open(os.path.join(folder, str(index)), "rb") as file:  # our own children wrote it, for us alone
                found[index] = pickle.load(file)
        return found


def _keep_result(index: int, folder: str, fn: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> None:
    result = fn(*args, **kwargs)
    with open(os.path.join(folder, str(index)), "wb") as file:
        pickle.dump(result, file)


def _run(index: int, count: int, meeting: str, fn: Callable[..., object], args: tuple[object, ...]) -> None:
    if count > 1:
        if platform.is_started():
            raise RuntimeError(
                "An xla device was used while this process imported the program: put what uses devices below "
                "`if __name__ == '__main__'`, or into the function that is started."
            )
        identity.take(Place(index, count, index, count), partial(_store, meeting), True)
    try:
        _call(fn, index, args)
        if count > 1:
            coordination.finish()
    except BaseException as error:
        coordination.note_exception(error)
        raise
    coordination.disconnect()  # a forked process does not come to its exit functions


def _store(meeting: str) -> FileStore:
    if not os.path.exists(meeting):  # PyTorch would wait for it
        raise RuntimeError("The launcher of this program's processes has ended, or has given up.")
    return FileStore(meeting)


def _call(fn: Callable[..., object], index: int, args: tuple[object, ...]) -> None:
    try:
        fn(index, *args)
    except SystemExit as ended:
        if ended.code not in (None, 0):  # else it has done what it had to
            raise


def _end(context: ProcessContext) -> None:
    for process in context.processes:
        if process.is_alive():
            process.terminate()
    for process in context.processes:
        process.join(5)
        if process.is_alive():
            process.kill()


def _refuse_processes_of_processes() -> None:
    count = identity.process_count()
    if count > 1:
        raise RuntimeError(
            f"This is process {identity.process_index()} of {count} already, and cannot start the processes of a "
            f"program. Under torchrun, call the function by `torch_xla.launch`, which starts none then."
        )


def device_count() -> int:
    """Return the number of processes of a program on this machine: one for each device. Starts no client."""
    kind = platform_selection.device_type()
    if kind == "CPU":
        return max(1, config.cpu_num_devices(), config.forced_host_devices())
    if kind == "CUDA":
        return _gpu_count()
    if kind == "TPU" and tpu_chips.chip_count():
        return tpu_chips.process_count()
    return platform.expected_device_count()


def _gpu_count() -> int:
    there = max(1, platform.gpu_count())  # Linux on Windows has no device files
    wanted = config.gpu_num_devices()
    if wanted > there:
        raise RuntimeError(f"GPU_NUM_DEVICES is {wanted}, and this machine shows {there} GPUs (CUDA_VISIBLE_DEVICES).")
    return wanted or there


def checked_count(nprocs: int | None) -> int:
    """Return the number of processes for `nprocs`. Raise `ValueError` for a number that the devices do not allow."""
    there = device_count()
    if nprocs is None:
        count = there
    elif nprocs == there or (nprocs > 0 and there == 1 and platform_selection.device_type() == "CPU"):
        count = nprocs  # the CPU is as many devices as are asked for
    else:
        raise ValueError(
            f"spawn(nprocs={nprocs}): expected None or {there}, for a process for each device, or 1, for a call "
            f"in this process. CPU_NUM_DEVICES, GPU_NUM_DEVICES, CUDA_VISIBLE_DEVICES and TPU_VISIBLE_CHIPS decide how "
            f"many devices there are."
        )
    if count > 1 and platform_selection.device_type() not in ("CPU", "CUDA", "ROCM", "TPU"):
        raise NotImplementedError(
            f"spawn(): starting a process for each of {count} {platform_selection.device_type()} devices is not in "
            f"this version of "
            f"torch_xla. Use one device (nprocs=1), or `torch_xla.device(n)` for each in one process."
        )
    return count
