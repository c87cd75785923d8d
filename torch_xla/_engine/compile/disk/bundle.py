"""Pack the executables of a cache folder into one file, to take to another machine or into an image."""

import contextlib
import tarfile
from collections.abc import Iterable
from pathlib import Path

from ...runtime import device_assignment, platform, topologies
from ...runtime.topologies import Topology
from ..environment_digest import installed
from ..executable_key import described
from . import bundle_machine, cache_folder, executable_format
from .executable_format import Unreadable


def write(bundle: Path, place: Path) -> int:
    """Write the contents of the folder `place` to the tar file `bundle`; return the number of executables."""
    return _pack(bundle, sorted(place.iterdir()) if place.is_dir() else ())


def write_for(bundle: Path, place: Path, topology: str | Topology) -> int:
    """Write what was compiled for a topology; return the number of executables.

    Raises `ValueError`, and writes nothing, if there are none.
    """
    devices = topologies.devices_of(topologies.named(topology))
    target = device_assignment.of_mesh(devices) if len(devices) > 1 else device_assignment.of_device(devices[0])
    needed = described(target) | installed(target).texts()
    folder = place / cache_folder.TOPOLOGIES
    found = [path for path, header in cache_folder.headers(folder) if needed.items() <= header.environment.items()]
    if not found:
        raise ValueError(
            f"No program in {folder} was compiled for {len(devices)} of {devices[0].device_kind!r} with what is "
            "installed here. `torch_xla.debug.plan(step, topology=...)` compiles them."
        )
    # Which numbers of a program are constants is noted under an earlier name, which ends with the same environment.
    ends = tuple({f"-{path.name.partition('-')[2]}.numbers" for path in found})
    return _pack(bundle, [*found, *(path for path in sorted(folder.iterdir()) if path.name.endswith(ends))])


def _pack(bundle: Path, paths: Iterable[Path]) -> int:
    count = 0
    with tarfile.open(bundle, "w") as archive:
        for path in paths:
            if path.name.endswith(cache_folder.SUFFIXES) and not path.name.startswith("."):
                archive.add(path, path.name)
                count += path.name.endswith(cache_folder.SUFFIX)
    return count


def refuse_others(bundle: Path) -> None:
    """Raise `ValueError` if none of the executables is for this process; before a device is in use, warn later."""
    found = environments(bundle)
    if not platform.is_started():
        bundle_machine.check_later(bundle, found)
    elif text := bundle_machine.refused(bundle, found, device_assignment.of_device(platform.local_devices()[0])):
        raise ValueError(text)


def environments(bundle: Path) -> list[dict[str, str]]:
    """Return what the executables of a bundle were compiled for and with, each environment once."""
    found: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    with tarfile.open(bundle, "r") as archive:
        for name, data in _files(archive):
            if name.endswith(cache_folder.SUFFIX):
                with contextlib.suppress(Unreadable):  # `read` names it
                    environment = executable_format.header_in(data).environment
                    found[tuple(sorted(environment.items()))] = environment
    return list(found.values())


def read(bundle: Path, place: Path) -> tuple[int, list[str]]:
    """Put the contents of `bundle` into `place`; return the number of executables and the names of damaged ones."""
    count = 0
    damaged: list[str] = []
    with tarfile.open(bundle, "r") as archive:
        for name, data in _files(archive):
            try:
                cache_folder.adopt(place, name, data)
                count += name.endswith(cache_folder.SUFFIX)
            except Unreadable:
                damaged.append(name)
    return count, damaged


def _files(archive: tarfile.TarFile) -> Iterable[tuple[str, bytes]]:
    for member in archive:
        name = Path(member.name).name  # a bundle has no folders: a path in it must not lead anywhere else
        file = archive.extractfile(member) if member.isfile() and name.endswith(cache_folder.SUFFIXES) else None
        if file is not None:
            yield name, file.read()
