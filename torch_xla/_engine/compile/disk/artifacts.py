"""Executables in `torch.compiler.save_cache_artifacts` and `load_cache_artifacts`, beside what PyTorch's caches hold.

Saved are the files of the folder that this process wrote or loaded. Only their names are recorded while programs run:
a file is read when all are saved, and a file that no longer exists is left out.
"""

import contextlib
from pathlib import Path
from typing import Any

from ...compat.names import torch_caches
from ...compat.names.torch_caches import CacheArtifact
from . import cache_folder, executable_format
from .executable_format import Refused, Unreadable


class ExecutableFile(CacheArtifact):
    """A file of the folder, by its name; its content is read when it is needed."""

    def __init__(self, key: str, content: bytes) -> None:
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "_given", content)

    @property
    def content(self) -> bytes:  # type: ignore[override]
        """The bytes of the file; none if it was deleted."""
        given: bytes = self._given  # type: ignore[attr-defined]
        return given or _read(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExecutableFile) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"ExecutableFile({self.key!r})"

    def populate_cache(self) -> None:
        """Put the file into the folder, signed with this user's key."""
        given: Any = self._given  # type: ignore[attr-defined]
        if given:
            _adopt(self.key, given)

    @staticmethod
    def type() -> str:
        """Return the kind of artifact, as `CacheInfo` names it."""
        return "xla"


def _read(name: str) -> bytes:
    """Return the bytes of a file of the folder, none if it is not there or must not be used."""
    place = cache_folder.folder()
    try:
        return executable_format.contents(place / name) if place is not None else b""
    except (OSError, Refused, Unreadable):
        return b""


def _adopt(name: str, data: bytes) -> None:
    """Put a file that PyTorch loaded into the folder; leave out what is damaged or no file of a folder like this."""
    place = cache_folder.folder()
    is_of_a_folder = name == Path(name).name and name.endswith(cache_folder.SUFFIXES)
    if place is None or cache_folder.is_read_only() or not is_of_a_folder:
        return
    with contextlib.suppress(OSError, Refused, Unreadable):
        cache_folder.adopt(place, name, data)


def note(name: str) -> None:
    """Record that this process wrote or loaded the file `name`."""
    torch_caches.record(ExecutableFile, name)


torch_caches.register(ExecutableFile)
