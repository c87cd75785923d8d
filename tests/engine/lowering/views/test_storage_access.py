"""A storage read and written through a view of it, as PyTorch does it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.support.rules import to_jax, to_torch
from torch_xla._engine.ir.view.geometry import Geometry
from torch_xla._engine.lowering.views.storage_access import read, write

BASE = torch.arange(12.0).reshape(3, 4)
COMPLEX = torch.complex(torch.arange(6.0), -torch.arange(6.0)).reshape(2, 3)
VIEWS = {
    "transposed": (BASE, lambda x: x.t()[1:, ::2]),
    "of another dtype": (BASE, lambda x: x.view(torch.int32)[:, 1:3]),
    "of another size": (BASE, lambda x: x.view(torch.float64)[1]),
    "of truth values": (torch.arange(6.0).half(), lambda x: x[4:].view(torch.bool)),
    "of one truth value beside bytes": (torch.arange(6, dtype=torch.uint8), lambda x: x.view(torch.bool)[:1]),
    "of every other element in another order": (torch.arange(9.0), lambda x: x.as_strided((2, 2), (2, 4), 1)),
    "conjugate": (COMPLEX, lambda x: x.conj()[1:]),
    "negative": (COMPLEX, lambda x: x.conj().imag[:, 1]),
    "real": (COMPLEX, lambda x: x.real.t()),
    "expanded": (BASE, lambda x: x[1:2, 1:2].expand(3, 2)),
}


def described(base: torch.Tensor, view: torch.Tensor) -> tuple[object, ...]:
    """Base and view as a rule takes them."""
    shown = Geometry(tuple(view.shape), view.stride(), view.storage_offset())
    whole = Geometry(tuple(base.shape), base.stride(), 0)
    return whole, shown, base.dtype, view.dtype, view.is_conj(), view.is_neg()


@pytest.mark.parametrize("name", VIEWS)
def test_what_a_view_shows(name: str) -> None:
    base, make = VIEWS[name]
    view = make(base.clone())
    with jax.enable_x64(True):
        found = to_torch(read(to_jax(base), *described(base, view)))  # type: ignore[arg-type]
    expected = view.resolve_conj().resolve_neg().contiguous()
    assert found.dtype == expected.dtype and torch.equal(found, expected)


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_written_through_a_view(name: str) -> None:
    base, make = VIEWS[name]
    expected = base.clone()
    view = make(expected)
    value = torch.arange(100, 100 + view.numel()).reshape(view.shape).to(view.dtype)
    if name == "expanded":
        value = torch.full_like(value, 7)  # the only writes that PyTorch allows
    place = described(base, view)
    view.copy_(value) if name != "expanded" else view.fill_(7)
    with jax.enable_x64(True):
        found = to_torch(write(to_jax(base), to_jax(value), *place))  # type: ignore[arg-type]
    assert torch.equal(found, expected)


@pytest.mark.parametrize("offset", [0, 5, 8])
def test_a_view_may_begin_anywhere(offset: int) -> None:
    place = (Geometry((12,), (1,), 0), Geometry((4,), (1,), 2), torch.float32, torch.float32, False, False)
    flat = np.arange(12, dtype=np.float32)
    written = flat.copy()
    written[offset : offset + 4] = -1
    for at in (offset, jnp.asarray(offset)):  # known, and not
        np.testing.assert_array_equal(read(jnp.asarray(flat), *place, offset=at), flat[offset : offset + 4])
        found = write(jnp.asarray(flat), jnp.full(4, -1.0, np.float32), *place, offset=at)
        np.testing.assert_array_equal(found, written)
