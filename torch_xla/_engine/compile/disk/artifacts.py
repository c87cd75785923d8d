"""Executables in `torch.compiler.save_cache_artifacts` and `load_cache_artifacts`, beside what PyTorch's caches hold.

Saved are the files of the folder that this process wrote or loaded. Only their names are recorded while programs run:
a file is read when all are saved, and a file that no longer exists is left out.
"""

from collections.abc import Callable
from typing import Any

from ...compat.names import torch_caches
from ...compat.names.torch_caches import CacheArtifact

# How to read a file of the folder, and how to put one there, by its name. The cache that has the folder sets both.
Read = Callable[[str], bytes]
Adopt = Callable[[str, bytes], None]


class ExecutableFile(CacheArtifact):
    """A file of the folder, by its name; its content is read when it is needed."""

    _read: Read
    _adopt: Adopt

    def __init__(self, key: str, content: bytes) -> None:
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "_given", content)

    @property
    def content(self) -> bytes:  # type: ignore[override]
        """The bytes of the file; none if it was deleted."""
        given: bytes = self._given  # type: ignore[attr-defined]
        return given or type(self)._read(self.key)

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
            type(self)._adopt(self.key, given)

    @staticmethod
    def type() -> str:
        """Return the kind of artifact, as `CacheInfo` names it."""
        return "xla"


def serve(read: Read, adopt: Adopt) -> None:
    """Read and write files by these functions from now on."""
    ExecutableFile._read, ExecutableFile._adopt = staticmethod(read), staticmethod(adopt)


def note(name: str) -> None:
    """Record that this process wrote or loaded the file `name`."""
    torch_caches.record(ExecutableFile, name)


torch_caches.register(ExecutableFile)
