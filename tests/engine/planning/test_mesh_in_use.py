"""Which mesh names the axes of a collective: the default, or the last one that is still held."""

import gc

import numpy as np
import pytest

import torch_xla.distributed.spmd as xs
from torch_xla._engine.planning import mesh_in_use
from torch_xla._engine.planning.collective_axes import NamedMesh


@pytest.fixture(autouse=True)
def no_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_in_use, "_latest", None)


def test_without_a_mesh_there_are_no_names() -> None:
    assert mesh_in_use.named_mesh() is None


def test_the_last_mesh_counts_while_it_is_held() -> None:
    mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
    assert mesh_in_use.named_mesh() == NamedMesh(("data", "model"), (2, 2), (0, 1, 2, 3))
    del mesh
    gc.collect()
    assert mesh_in_use.named_mesh() is None


def test_the_default_comes_before_the_last() -> None:
    default = xs.Mesh([1, 0], (2,))
    xs.set_global_mesh(default)
    later = xs.Mesh(np.arange(2), (1, 2), ("data", "model"))
    assert mesh_in_use.named_mesh() == NamedMesh(("0",), (2,), (1, 0))
    xs.set_global_mesh(None)
    assert mesh_in_use.named_mesh() == NamedMesh(("data", "model"), (1, 2), (0, 1))
    assert later.size() == 2
