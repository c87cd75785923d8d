"""Executables at an address that fsspec knows, such as "s3://bucket/programs", behind the folder of each machine.

A process that does not find an executable in its folder asks the store, and writes there what it compiled. Of all
processes one compiles a program: it creates a lease beside the executables, which it renews, and the others wait until
the lease is deleted. A lease that is not renewed belongs to a dead process, and one of those that wait takes its turn:
the one that creates the lease of the next generation, a file of its own. It exists only once where the store creates
files exclusively, as S3, Google Cloud Storage and folders do. Clocks of machines are not compared.

The store is trusted as little as the folder: the caller checks the signature of each executable.
"""

import contextlib
import functools
import hashlib
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from ... import remote_files

_LEASES = "compiling"
# Seconds between two renewals of a lease, and after which a lease that is not renewed belongs to a dead process.
RENEWED_EVERY, DEAD_AFTER = 5.0, 30.0
# Seconds between two looks at the lease of another process.
_SHORTEST_SLEEP, _LONGEST_SLEEP = 0.05, 1.0
# A process whose compiler hangs renews its lease. After this many seconds others compile, too.
_LONGEST = 900.0

Result = TypeVar("Result")


def folder_of(address: str) -> str:
    """Return the name of the folder of each machine for copies of the files at `address`."""
    return f"copy-of-{hashlib.sha256(address.encode()).hexdigest()[:16]}"


@functools.cache
def at(address: str, warn: Callable[[str], None]) -> "RemoteStore":
    """Return the store at `address`, the same for all calls. `warn` gets the reason if it cannot be used, once."""
    return RemoteStore(address, warn)


class RemoteStore:
    """The files at one address. After the first failure it is empty: each request would wait for it again."""

    def __init__(self, address: str, warn: Callable[[str], None]) -> None:
        self.address = address
        self._warn = warn
        self._root, self._files = "", None
        self._is_lost = False
        self._known: set[str] | None = None  # names that are there: as listed once, and as seen since

    def _ask(self, request: Callable[[Any, str], Result]) -> Result | None:
        """Return the result of a request, `None` if there is no such file or the store cannot be used."""
        if self._is_lost:
            return None
        try:
            if self._files is None:
                self._files, self._root = remote_files.files_at(self.address)
            return request(self._files, self._root)
        except (FileNotFoundError, FileExistsError):
            return None
        except Exception as error:  # each library has its own; whichever it is, the program is compiled here
            self._is_lost = True
            self._warn(f"Compiled programs at {self.address} are not used: {type(error).__name__}: {error}")
            return None

    def has(self, name: str) -> bool:
        """Return whether this file was there when the store was listed, or has been seen since."""
        if self._known is None:
            listed: list[str] = self._ask(lambda files, root: files.ls(root, detail=False)) or []
            self._known = {each.rpartition("/")[2] for each in listed}
        return name in self._known

    def fetch(self, name: str) -> bytes | None:
        """Return the bytes of a file, `None` if it is not there."""
        return self._ask(lambda files, root: files.cat_file(f"{root}/{name}")) if self.has(name) else None

    def put(self, name: str, data: bytes) -> None:
        """Write a file, over one that is there."""

        def write(files: Any, root: str) -> None:
            files.makedirs(root, exist_ok=True)
            files.pipe_file(f"{root}/{name}", data)

        self._ask(write)
        if self._known is not None:
            self._known.add(name)

    @contextlib.contextmanager
    def turn(self, name: str, written: Iterable[str]) -> Iterator[bool]:
        """Hold the turn to compile what belongs in the file `name`, or wait until another process finished its turn.

        Gives whether a file of `written` is there now. A process that has waited has no turn, as in `compile_turn`.
        """
        lease = _Lease(self._ask, name)
        is_held = self._entered(lease)
        try:
            yield any([self._has_come(each) for each in written])
        finally:
            if is_held:
                lease.end()

    def _entered(self, lease: "_Lease") -> bool:
        """Take the lease, or wait for its end; return whether this process has it."""
        begun, sleep = time.monotonic(), _SHORTEST_SLEEP
        seen, since = b"", begun
        while not self._is_lost and time.monotonic() - begun < _LONGEST:
            if not seen and lease.take():
                return True
            found = lease.content()
            if found is None and seen:
                return False  # its owner has finished
            now = time.monotonic()
            if found is not None and found != seen:
                seen, since = found, now
            elif found is not None and now - since > DEAD_AFTER:
                lease.pass_over(found)
                seen = b""
                continue
            time.sleep(sleep)
            sleep = min(2 * sleep, _LONGEST_SLEEP)
        return False

    def _has_come(self, name: str) -> bool:
        def look(files: Any, root: str) -> bool:
            files.invalidate_cache()
            return bool(files.exists(f"{root}/{name}"))

        if not self.has(name) and self._ask(look) and self._known is not None:
            self._known.add(name)
        return self.has(name)


class _Lease:
    """The file by which one process at a time compiles one program. A thread renews it while this process lives.

    Only the process that has created a file writes it. Those of dead processes stay until the turn has ended, so that
    two processes that find one dead meet at the same next generation.
    """

    def __init__(self, ask: Callable[[Callable[[Any, str], Any]], Any], name: str) -> None:
        self._ask, self._name = ask, name
        self._word = uuid.uuid4().hex
        self._dead: list[bytes] = []  # what the processes of the generations before this one wrote last
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="torch_xla-lease", daemon=True)

    def _path(self, root: str, generation: int) -> str:
        return f"{root}/{_LEASES}/{self._name}{f'.{generation}' if generation else ''}"

    def take(self) -> bool:
        """Create the lease; return whether that succeeded."""

        def create(files: Any, root: str) -> bool:
            files.makedirs(f"{root}/{_LEASES}", exist_ok=True)
            files.pipe_file(self._path(root, len(self._dead)), self._word.encode(), mode="create")
            return True

        is_taken = bool(self._ask(create))
        if is_taken:
            self._thread.start()
        return is_taken

    def content(self) -> bytes | None:
        """Return what its owner wrote last, `None` if there is no lease."""
        return self._content(len(self._dead))

    def _content(self, generation: int) -> bytes | None:
        found: bytes | None = self._ask(lambda files, root: files.cat_file(self._path(root, generation)))
        return found

    def pass_over(self, content: bytes) -> None:
        """Go to the next generation: the process that wrote `content` is dead."""
        self._dead.append(content)

    def end(self) -> None:
        """Let the others go on."""
        self._ends.set()
        self._thread.join()
        self._delete(len(self._dead))
        for generation, content in enumerate(self._dead):
            if self._content(generation) == content:  # it may be another process's by now
                self._delete(generation)

    def _delete(self, generation: int) -> None:
        self._ask(lambda files, root: files.rm_file(self._path(root, generation)))

    def _renew(self) -> None:
        number = 0
        while not self._ends.wait(RENEWED_EVERY):
            number += 1
            self._ask(functools.partial(self._write, f"{self._word} {number}".encode()))

    def _write(self, text: bytes, files: Any, root: str) -> None:
        files.pipe_file(self._path(root, len(self._dead)), text)
