"""Pack the executables of a cache folder into one file, to take to another machine or into an image."""

import tarfile
from collections.abc import Iterable
from pathlib import Path

from . import disk_cache
from .executable_format import Unreadable

_SUFFIXES = (disk_cache.SUFFIX, f"{disk_cache.SUFFIX}.numbers")


def write(bundle: Path, place: Path) -> int:
    """Write the contents of the folder `place` to the tar file `bundle`; return the number of executables."""
    count = 0
    with tarfile.open(bundle, "w") as archive:
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if path.name.endswith(_SUFFIXES) and not path.name.startswith("."):
                archive.add(path, path.name)
                count += path.name.endswith(disk_cache.SUFFIX)
    return count


def read(bundle: Path, place: Path) -> tuple[int, list[str]]:
    """Put the contents of `bundle` into `place`; return the number of executables and the names of damaged ones."""
    count = 0
    damaged: list[str] = []
    with tarfile.open(bundle, "r") as archive:
        for name, data in _files(archive):
            try:
                disk_cache.adopt(place, name, data)
                count += name.endswith(disk_cache.SUFFIX)
            except Unreadable:
                damaged.append(name)
    return count, damaged


def _files(archive: tarfile.TarFile) -> Iterable[tuple[str, bytes]]:
    for member in archive:
        name = Path(member.name).name  # a bundle has no folders: a path in it must not lead anywhere else
        file = archive.extractfile(member) if member.isfile() and name.endswith(_SUFFIXES) else None
        if file is not None:
            yield name, file.read()
