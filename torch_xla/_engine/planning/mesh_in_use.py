"""The user's mesh, by whose axes a plan names collectives: the default mesh, or the mesh that was made last."""

from collections.abc import Iterable
from typing import Protocol
from weakref import ref

from .collective_axes import NamedMesh


class Grid(Protocol):
    """A mesh: devices in a grid, whose axes may have names."""

    mesh_shape: tuple[int, ...]
    axis_names: tuple[str, ...] | None

    @property
    def device_ids(self) -> Iterable[int]: ...


_default: Grid | None = None
_latest: ref[Grid] | None = None


def note_made(mesh: Grid) -> None:
    """Remember the mesh that was made last, for as long as someone else holds it."""
    global _latest
    _latest = ref(mesh)


def set_default(mesh: Grid | None) -> None:
    """Make `mesh` the default; `None` removes the default."""
    global _default
    _default = mesh


def default() -> Grid | None:
    """Return the mesh of `set_default`; `None` if there is none."""
    return _default


def named_mesh() -> NamedMesh | None:
    """Return the default mesh; without one, the mesh that was made last and is still held. Axes without names are
    named by their index.
    """
    mesh = _default or (_latest() if _latest is not None else None)
    if mesh is None:
        return None
    names = mesh.axis_names or tuple(map(str, range(len(mesh.mesh_shape))))
    return NamedMesh(names, mesh.mesh_shape, tuple(map(int, mesh.device_ids)))
