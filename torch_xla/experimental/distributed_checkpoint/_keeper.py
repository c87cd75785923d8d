"""The folder in shared memory that a job has on a host, and the process that removes it when the job has ended.

The folder belongs to the agent of `torchrun`, which starts the processes of the job again, or to this process if there
is none. So it outlives the processes that an agent starts, and does not outlive the agent, however that ends.
"""

import fcntl
import os
import shutil
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path("/dev/shm")
_LOCK = ".keeper"
_FLOCK = "hhlli"  # the C structure that asks who holds a lock: to take the lock would keep a new keeper from it
_MARK = b"TORCHELASTIC_RUN_ID="  # in the environment of an agent's processes, and not in the agent's

_NOTHING = subprocess.DEVNULL
_keepers: "dict[Path, subprocess.Popen[bytes]]" = {}


def folder_of_job() -> Path:
    """Make the folder of this job on this host, which only this user can read, and start its keeper."""
    if not ROOT.is_dir():
        raise RuntimeError(f"CheckpointManager(): memory_every= needs shared memory in {ROOT}, as Linux has it")
    owner = _owner()
    began = _began(owner)
    folder = ROOT / f"torch_xla_{os.getuid()}_{owner}_{began}"
    folder.mkdir(mode=0o700, exist_ok=True)
    _refuse_of_others(folder)
    _start(folder)
    return folder


def start_again(folder: Path) -> bool:
    """Start the keeper of a folder if it was killed, and return whether it was. Raises `OSError` if none starts."""
    own = _keepers.get(folder)
    if (own is not None and own.poll() is None) or holder_of(folder) is not None:
        return False
    _start(folder)
    return True


def holder_of(folder: Path) -> int | None:
    """Return the process that removes a folder, started by this or by an earlier attempt; `None` if there is none."""
    with (folder / _LOCK).open("a") as lock:
        found = fcntl.fcntl(lock, fcntl.F_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0))
    kind, *_, pid = struct.unpack(_FLOCK, found)
    return None if kind == fcntl.F_UNLCK else int(pid)


def _start(folder: Path) -> None:
    owner, began = folder.name.split("_")[-2:]
    command = [sys.executable, "-I", "-S", __file__, str(folder), owner, began]
    # A session of its own: `torchrun` signals the group of each process that it ends.
    if folder not in _keepers or _keepers[folder].poll() is not None:
        _keepers[folder] = subprocess.Popen(
            command, stdin=_NOTHING, stdout=_NOTHING, stderr=_NOTHING, start_new_session=True
        )


def _refuse_of_others(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"CheckpointManager(): others can reach {folder}; remove it, or leave memory_every= out")


def _owner() -> int:
    """Return the process whose end is that of the job: the agent above this process, or this process."""
    pid = os.getpid()
    while pid > 1 and _MARK in _read(pid, "environ"):
        pid = int(_fields(pid)[1])
    return pid if pid > 1 else os.getpid()


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def _fields(pid: int) -> list[bytes]:
    """Return the state of a process, its parent and so on; nothing if it is gone."""
    return _read(pid, "stat").rpartition(b")")[2].split()


def _began(pid: int) -> int:
    """Return when a process began, in ticks since the start of the machine; 0 if it has ended."""
    fields = _fields(pid)
    return int(fields[19]) if fields and fields[0] not in b"ZX" else 0


def keep(folder: Path, owner: int, began: int) -> None:
    """Wait until a process has ended, and remove the folder. Return at once if another process does that."""
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return
        _wait_for_end(owner, began)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_end(owner: int, began: int) -> None:
    while _began(owner) == began:
        time.sleep(0.5)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
