"""The cache of compiled programs on disk: inspect it, explain its misses, export it and import it.

Programs that took a while to compile are kept in a folder, by default below the user's cache folder. A later process
that records the same program loads it instead of lowering and compiling it. The key of a program contains its
operations and everything that compiling depends on: versions, platform, device, flags. Files are checked and never
unpickled. Since an executable is code, a folder or file that another user may write to is refused with a warning, and
so is a file that is not signed with this user's key (`XLA_PERSISTENT_CACHE_KEY`, created at the first use). Where the
programs are at an address, such as "s3://bucket/programs", this is about the copies on this machine. From the command
line:

    python -m torch_xla.cache                        # what the folder holds
    python -m torch_xla.cache export programs.tar
    python -m torch_xla.cache export programs.tar --topology v5e:4x4    # what plans compiled for it
    python -m torch_xla.cache import programs.tar    # only from a source you trust: an executable is code
    python -m torch_xla.cache clear
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from ._engine import metrics, runtime
from ._engine.compile.disk import bundle, cache_folder, disk_cache


@dataclass(frozen=True)
class Statistics:
    """The contents of a cache folder, and the hits, misses and writes of this process."""

    folder: Path | None
    executables: int
    bytes: int
    seconds: float  # what compiling all of them took
    hits: int
    misses: int
    writes: int


def statistics() -> Statistics:
    """Count the files in the folder, and the hits, misses and writes of this process.

    >>> import torch_xla.cache
    >>> found = torch_xla.cache.statistics()
    >>> found.hits >= 0 and found.bytes >= 0
    True
    """
    place = cache_folder.folder()
    held = [header for _, header in cache_folder.headers(place)] if place is not None and place.is_dir() else []
    return Statistics(
        place,
        len(held),
        cache_folder.size_of(place) if place is not None and place.is_dir() else 0,
        sum(header.seconds for header in held),
        *(metrics.counter_value(f"PersistentCache{name}") or 0 for name in ("Hit", "Miss", "Write")),
    )


def misses() -> list[str]:
    """Return the reasons for the latest misses of this process, oldest first.

    A reason names the versions or flags that differ from those of the program on disk, or says that the program was
    never compiled.

    >>> import torch_xla.cache
    >>> isinstance(torch_xla.cache.misses(), list)
    True
    """
    return [f"program {program[:8]}: {reason}" for program, reason in disk_cache.misses()]


def export(path: str | Path, topology: str | runtime.Topology | None = None) -> int:
    """Write every executable of the folder to the tar file `path`, and return the number of executables.

    With a `topology`, as in `torch_xla.debug.plan(step, topology="v5e:4x4")`, write those that such plans have compiled
    with what is installed now. A process on that machine that imports them and records the same steps compiles
    nothing. `ValueError` if there are none.

    >>> import tempfile, torch_xla.cache, torch_xla.runtime as xr
    >>> xr.initialize_cache(tempfile.mkdtemp())
    >>> with tempfile.TemporaryDirectory() as place:
    ...     torch_xla.cache.export(f"{place}/programs.tar") >= 0
    True
    """
    if topology is None:
        return bundle.write(Path(path), _folder())
    return bundle.write_for(Path(path), _folder(), topology)


def load(path: str | Path, elsewhere: bool = False) -> int:
    """Import the executables of a tar file made by `export` into the folder, and return their number.

    Each is signed with your key. Import only files from a source you trust: an executable is code. If some of the
    executables are damaged, import the others, then raise `ValueError`.

    If none of them is for the devices, JAX and compiler of this process, raise `ValueError` with what differs, and
    import nothing; before a device is in use, import them, and warn when one is. With `elsewhere=True` they may be for
    another machine, as in an image that is built for it.

    >>> import tempfile, torch_xla.cache, torch_xla.runtime as xr
    >>> xr.initialize_cache(tempfile.mkdtemp())
    >>> with tempfile.TemporaryDirectory() as place:
    ...     exported = torch_xla.cache.export(f"{place}/programs.tar")
    ...     torch_xla.cache.load(f"{place}/programs.tar") == exported
    True
    """
    if not elsewhere:
        bundle.refuse_others(Path(path))
    count, damaged = bundle.read(Path(path), _folder())
    if damaged:
        names = ", ".join(damaged[:5])
        raise ValueError(f"{len(damaged)} of the files in {path} are damaged and were left out: {names}")
    return count


def clear() -> None:
    """Delete every executable of the folder, and those for topologies.

    >>> import tempfile, torch_xla.cache, torch_xla.runtime as xr
    >>> xr.initialize_cache(tempfile.mkdtemp())
    >>> torch_xla.cache.clear()
    >>> torch_xla.cache.statistics().executables
    0
    """
    place = cache_folder.folder()
    if place is not None and place.is_dir():
        cache_folder.clear(place)


def _folder() -> Path:
    place = cache_folder.folder()
    if place is None:
        raise RuntimeError("no programs are kept on disk: XLA_PERSISTENT_CACHE_PATH is empty; set it to a folder")
    return place


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m torch_xla.cache", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("statistics", help="what the folder holds (the default)")
    exporting = commands.add_parser("export", help="write it to a tar file")
    exporting.add_argument("path", type=Path)
    exporting.add_argument("--topology", help="what was compiled for one, such as v5e:4x4")
    importing = commands.add_parser("import", help="add what a tar file holds")
    importing.add_argument("path", type=Path)
    importing.add_argument("--elsewhere", action="store_true", help="it may be for another machine, JAX or compiler")
    commands.add_parser("clear", help="delete it")
    arguments = parser.parse_args()
    if arguments.command == "export":
        print(f"{export(arguments.path, arguments.topology)} executables written to {arguments.path}")
    elif arguments.command == "import":
        if not arguments.elsewhere:
            runtime.local_devices()  # to know what the programs must be for
        print(f"{load(arguments.path, arguments.elsewhere)} executables put into {_folder()}")
    elif arguments.command == "clear":
        clear()
        print(f"{_folder()} is empty")
    else:
        found = statistics()
        print(f"{found.folder}: {found.executables} executables, {found.bytes / 2**20:.1f} MiB,", end=" ")
        print(f"{found.seconds:.1f} s of compiling")


if __name__ == "__main__":
    _main()
