"""The places of checkpoints: a folder, or an address that fsspec knows, with one folder for each step.

Every process writes checksums of its files beside them, so that a damaged checkpoint is found before it is loaded.
"""

import json
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, StorageReader

from ..._engine.compat.names import torch_checkpoint
from ..._engine.processes import process_count, process_index
from ._messages import Messages
from ._orbax import MARK as ORBAX_MARK
from ._orbax import OrbaxReader, items_of, written_at
from ._orbax import is_whole as is_whole_orbax
from ._orbax import write as write_orbax

# Written after the data of all processes.
_METADATA = ".metadata"

# The last file of a checkpoint at an address. A folder is renamed as a whole, and needs none.
_COMPLETE = ".complete"

_SUMS = ".checksums-{}.json"
_BLOCK = 1 << 20


def place_at(path: str) -> "Folder":
    """Return the place of a path or an address, and make its folder."""
    return Address(path) if "://" in path else Folder(path)


class _Summed:
    """A stream whose size and checksum are known when all is written."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.size = self.sum = 0

    def write(self, data: bytes) -> int:
        """Write bytes."""
        seen = memoryview(data).cast("B")
        self.size, self.sum = self.size + len(seen), zlib.crc32(seen, self.sum)
        return int(self._stream.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Folder:
    """A folder of this machine, or of a disk that all machines mount."""

    def __init__(self, path: str) -> None:
        self.path = path
        Path(path).mkdir(parents=True, exist_ok=True)

    def _at(self, *names: Any) -> Path:
        return Path(self.path, *map(str, names))

    def steps(self) -> list[int]:
        """Return the steps whose checkpoints are complete, in order."""
        steps = [each for each in self._at().iterdir() if each.name.isdigit()]
        return sorted(int(each.name) for each in steps if (each / _METADATA).exists() or items_of(each))

    def _is_orbax(self, step: int) -> bool:
        return not self._at(step, _METADATA).exists() and bool(items_of(self._at(step)))

    def _age(self, step: int) -> int:
        if self._is_orbax(step):
            return written_at(self._at(step))
        return self._at(step, _METADATA).stat().st_mtime_ns

    def by_age(self) -> list[int]:
        """Return the same steps in the order in which they were written."""
        return sorted(self.steps(), key=self._age)

    def open(self, step: int, name: str) -> IO[bytes]:
        """Open a file of a complete checkpoint."""
        return self._at(step, name).open("rb")

    def names(self, step: int) -> list[str]:
        """Return the files of a complete checkpoint."""
        return [each.name for each in self._at(step).iterdir()]

    def reader(self, step: int, state_dict: Mapping[str, object]) -> StorageReader:
        """Return what `torch.distributed.checkpoint.load` reads a checkpoint into `state_dict` with."""
        if self._is_orbax(step):
            return OrbaxReader(self._at(step), state_dict)
        return FileSystemReader(self._at(step))

    def clear(self, step: int) -> None:
        """Remove what an interrupted save of a step has left. The checkpoint that it would replace stays."""
        shutil.rmtree(self._at(f"{step}.partial"), ignore_errors=True)

    def write(self, step: int, threads: int, save: Callable[[object], None]) -> None:
        """Let `save` write with a writer, and write the checksums of its files."""
        aside = self._at(f"{step}.partial")
        writer = FileSystemWriter(aside, thread_count=threads, sync_files=True)
        sums = _sum_up(writer, lambda: save(writer))
        (aside / _SUMS.format(process_index())).write_bytes(sums)

    def write_orbax(self, step: int, state_dict: Mapping[str, object], messages: Messages) -> None:
        """Write a checkpoint in Orbax's format."""
        write_orbax(self._at(f"{step}.partial"), state_dict, messages)

    def complete(self, step: int) -> None:
        """Put a checkpoint to its place when all processes have written."""
        place, replaced = self._at(step), self._at(f"{step}.replaced")
        if place.exists():
            place.rename(replaced)
        self._at(f"{step}.partial").rename(place)
        shutil.rmtree(replaced, ignore_errors=True)

    def remove(self, step: int) -> None:
        """Remove a checkpoint."""
        shutil.rmtree(self._at(step), ignore_errors=True)

    def is_whole(self, step: int) -> bool:
        """Return whether all files of a checkpoint have their sizes and checksums."""
        if self._is_orbax(step):
            return is_whole_orbax(self._at(step))
        try:
            return self._has_sums(step)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _has_sums(self, step: int) -> bool:
        written = [name for name in self.names(step) if name.startswith(".checksums-")]
        if not written:
            return True  # of a release that wrote none
        for place in range(int(self._sums(step, written[0])["processes"])):
            for name, expected in self._sums(step, _SUMS.format(place))["files"].items():
                with self.open(step, name) as file:
                    found = _sum_of(file)
                if found != expected:
                    return False
        return True

    def _sums(self, step: int, name: str) -> Any:
        with self.open(step, name) as file:
            return json.loads(file.read())


class Address(Folder):
    """A folder of a remote store, such as `s3://bucket/run`: its files appear one by one, the last when all are there.

    A step that is saved once more is lost if the process is killed meanwhile.
    """

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/")
        self._files, self._root = torch_checkpoint.remote_files(self.path)
        self._files.makedirs(self._root, exist_ok=True)

    def _name(self, *names: Any) -> str:
        return "/".join([self._root.rstrip("/"), *map(str, names)])

    def steps(self) -> list[int]:
        """Return the steps whose checkpoints are complete, in order.

        Raises `NotImplementedError` if all that is there was written by Orbax.
        """
        self._files.invalidate_cache()
        if not self._files.exists(self._root):
            return []
        found = [each.rstrip("/").rpartition("/")[2] for each in self._files.ls(self._root, detail=False)]
        steps = [each for each in found if each.isdigit()]
        complete = sorted(int(each) for each in steps if self._files.exists(self._name(each, _COMPLETE)))
        for each in () if complete else steps:  # else a job would begin anew, and say nothing
            if self._files.exists(self._name(each, ORBAX_MARK)):
                raise NotImplementedError(
                    f"CheckpointManager({self.path!r}): Orbax has written step {each}, and its checkpoints are read "
                    "from a folder only. Copy them to a folder of this machine, and pass its path."
                )
        return complete

    def by_age(self) -> list[int]:
        """Return the same steps in the order in which they were written, which the last file of each has."""
        return sorted(self.steps(), key=lambda step: float(self._files.cat_file(self._name(step, _COMPLETE))))

    def open(self, step: int, name: str) -> IO[bytes]:
        """Open a file of a complete checkpoint."""
        return self._files.open(self._name(step, name), "rb")  # type: ignore[no-any-return]

    def names(self, step: int) -> list[str]:
        """Return the files of a complete checkpoint."""
        return [each.rpartition("/")[2] for each in self._files.ls(self._name(step), detail=False)]

    def reader(self, step: int, state_dict: Mapping[str, object]) -> Any:
        """Return what `torch.distributed.checkpoint.load` reads a checkpoint with."""
        return torch_checkpoint.remote_reader(f"{self.path}/{step}")

    def _is_orbax(self, step: int) -> bool:
        return False  # Orbax's arrays at an address are not read

    def clear(self, step: int) -> None:
        """Remove what is there of a step."""
        self.remove(step)

    def write(self, step: int, threads: int, save: Callable[[object], None]) -> None:
        """Let `save` write with a writer, and write the checksums of its files."""
        writer = torch_checkpoint.remote_writer(f"{self.path}/{step}", thread_count=threads, sync_files=False)
        self._files.pipe_file(self._name(step, _SUMS.format(process_index())), _sum_up(writer, lambda: save(writer)))

    def complete(self, step: int) -> None:
        """Write the last file when all processes have written: the time."""
        self._files.pipe_file(self._name(step, _COMPLETE), str(time.time()).encode())

    def remove(self, step: int) -> None:
        """Remove a checkpoint, its last file first."""
        for name in (self._name(step, _COMPLETE), self._name(step)):
            if self._files.exists(name):
                self._files.rm(name, recursive=True)


def _sum_of(file: IO[bytes]) -> list[int]:
    """Return the size and the checksum of the rest of a file."""
    size = total = 0
    while block := file.read(_BLOCK):
        size, total = size + len(block), zlib.crc32(block, total)
    return [size, total]


def _sum_up(writer: Any, save: Callable[[], None]) -> bytes:
    """Call `save`, and return the checksums of the files that it made the writer write."""
    files: dict[str, list[int]] = {}
    create = writer.fs.create_stream

    @contextmanager
    def create_stream(path: object, mode: str) -> Iterator[Any]:
        with create(path, mode) as stream:
            summed = _Summed(stream)
            yield summed
        if mode == "wb":
            files[str(path).rpartition("/")[2].removesuffix(".tmp")] = [summed.size, summed.sum]

    writer.fs.create_stream = create_stream
    save()
    return json.dumps({"processes": process_count(), "files": files}).encode()
