"""Values divided among four virtual CPU devices: each function is a part of tests/engine/record/test_placement.py."""

from collections.abc import Callable

import numpy as np
import torch
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import torch_xla
import torch_xla.debug.metrics as met
from tests.support import parts
from torch_xla._engine.graph.sharding import Sharding
from torch_xla._engine.graph.text import to_text
from torch_xla._engine.lowering.sharding import from_jax
from torch_xla._engine.record import pending, placement
from torch_xla._engine.record.device import device_at

# Four devices are a grid of 2 × 2.
ROWS = Sharding(((0,),))
COLUMNS = Sharding(((), (1,)))
BOTH = Sharding(((0,), (1,)))
ALL = Sharding(((0, 1),))


def _refused(call: Callable[[], object], words: str) -> None:
    try:
        call()
    except NotImplementedError as error:
        assert words in str(error), error
    else:
        raise AssertionError("not refused")


def _compiles() -> int:
    return met.counter_value("UncachedCompile") or 0


def _shards(tensor: torch.Tensor) -> list[list[int]]:
    buffer = tensor.untyped_storage().value.buffer  # type: ignore[attr-defined]
    return [list(shard.data.shape) for shard in buffer.addressable_shards]


def any_mesh_of_the_devices_is_told_by_axes_of_the_grid() -> None:
    target = device_at(0).target
    devices = np.array(target.devices)
    meshes = {"square": Mesh(devices.reshape(2, 2), ("a", "b")), "line": Mesh(devices, ("a",))}
    meshes["turned"] = Mesh(devices.reshape(2, 2).T, ("a", "b"))
    for mesh, spec, dims in (
        ("square", P("a", "b"), ((0,), (1,))),
        ("square", P("b", "a"), ((1,), (0,))),
        ("square", P(("a", "b")), ((0, 1),)),
        ("square", P(("b", "a"), None), ((1, 0),)),
        ("square", P(None, "b"), ((), (1,))),
        ("line", P("a"), ((0, 1),)),
        ("line", P(None, "a"), ((), (0, 1))),
        ("turned", P("a"), ((1,),)),
        ("turned", P("a", "b"), ((1,), (0,))),
    ):
        assert from_jax(NamedSharding(meshes[mesh], spec), (8, 4), target) == Sharding(dims), (mesh, spec)
    assert from_jax(NamedSharding(meshes["line"], P()), (8, 4), target) is None
    shuffled = NamedSharding(Mesh(devices[[0, 3, 1, 2]], ("a",)), P("a"))
    _refused(lambda: from_jax(shuffled, (8, 4), target), "in the order of their ordinals")


def an_upload_is_on_every_device() -> None:
    x = torch.arange(8.0).to("xla")
    assert placement.sharding_of(x) is None and _shards(x) == [[8]] * 4 and x.tolist() == list(range(8))


def a_value_is_divided_and_read_back() -> None:
    host = torch.arange(32.0).view(8, 4)
    for sharding, shape in ((ROWS, [4, 4]), (BOTH, [4, 2]), (ALL, [2, 4]), (None, [8, 4])):
        x = host.to("xla")
        placement.place(x, sharding)
        assert placement.sharding_of(x) == sharding and _shards(x) == [shape] * 4
        assert x.cpu().equal(host) and x.t().cpu().equal(host.t()) and (x[1] + 1).cpu().equal(host[1] + 1)


def results_are_where_xla_puts_them_and_are_right() -> None:
    host, weight = torch.arange(32.0).view(8, 4), torch.linspace(-1, 1, 16).view(4, 4)
    x, w = host.to("xla"), weight.to("xla")
    placement.place(x, ROWS)
    placement.place(w, COLUMNS)
    y = torch.relu(x @ w)
    torch.testing.assert_close(y.cpu(), torch.relu(host @ weight))
    assert placement.sharding_of(y) == BOTH


def a_constraint_in_the_middle_holds() -> None:
    x = torch.arange(32.0).view(8, 4).to("xla")
    y = placement.constrained(x * 2, ALL) + 1
    text = to_text(pending.graph_of([y]).graph)
    assert "xla::sharding_constraint" in text
    assert placement.sharding_of(y) == ALL
    assert y.cpu().equal(torch.arange(32.0).view(8, 4) * 2 + 1)


def the_graph_says_how_its_inputs_are_divided() -> None:
    x = torch.ones(8, 4).to("xla")
    plain = to_text(pending.graph_of([x + 1]).graph)
    placement.place(x, BOTH)
    divided = to_text(pending.graph_of([x + 1]).graph)
    assert "f32[8,4]@[0, 1] xla::device_data()" in divided and divided != plain


def what_is_written_in_place_stays_divided() -> None:
    w = torch.zeros(8, 4).to("xla")
    placement.place(w, BOTH)
    w.add_(1)
    torch_xla.sync()
    assert placement.sharding_of(w) == BOTH
    w[2, 1:] = 5
    w.t()[0].mul_(3)
    torch_xla.sync()
    expected = torch.ones(8, 4)
    expected[2, 1:] = 5
    expected.t()[0].mul_(3)
    assert placement.sharding_of(w) == BOTH and w.cpu().equal(expected)
    w.copy_(torch.full((8, 4), 2.0))
    assert placement.sharding_of(w) == BOTH and w.cpu().equal(torch.full((8, 4), 2.0))


def _model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def _train(device: str, sharded: bool) -> tuple[list[float], list[int], list[object]]:
    model, _ = _model()
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.linspace(-1, 1, 32).view(8, 4).to(device)
    if sharded:
        placement.place(model[0].weight, Sharding(((1,),)))  # type: ignore[arg-type, index]
        placement.place(x, ROWS)
    losses, compiles = [], []
    for _ in range(6):
        before = _compiles()
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
        compiles.append(_compiles() - before)
    state = [*model.parameters(), *(v for s in optimizer.state.values() for v in s.values() if v.dim() == 2)]
    return losses, compiles, [placement.sharding_of(p) for p in state if p.device.type == "xla"]


def a_training_finds_its_program_though_xla_chose_where_its_state_lies() -> None:
    expected, _, _ = _train("cpu", False)
    found, compiles, shardings = _train("xla", True)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert compiles[3:] == [0, 0, 0], compiles
    assert Sharding(((1,),)) in shardings


def memory_is_given_away() -> None:
    w = torch.zeros(8, 4).to("xla")
    placement.place(w, BOTH)
    w.add_(1)
    torch_xla.sync()
    before = w.untyped_storage().value.buffer  # type: ignore[attr-defined]
    w.add_(1)
    torch_xla.sync(wait=True)
    assert before.is_deleted() and w.cpu().equal(torch.full((8, 4), 2.0))


def a_step_is_replayed_and_recorded_again_when_a_value_is_divided_anew() -> None:
    w = torch.zeros(8, 4).to("xla")
    placement.place(w, BOTH)

    def step(x: torch.Tensor) -> torch.Tensor:
        w.add_(x)
        return w.sum()

    compiled = torch_xla.compile(step, replay=True)
    x = torch.ones(8, 4).to("xla")
    assert [float(compiled(x)) for _ in range(6)] == [32.0 * n for n in range(1, 7)]
    assert compiled.is_replayed and placement.sharding_of(w) == BOTH


def random_numbers_are_drawn() -> None:
    torch.manual_seed(1)
    x = placement.constrained(torch.rand(8, 4, device="xla"), ROWS)
    assert 0 < x.mean().item() < 1 and len(set(x.flatten().tolist())) == 32


if __name__ == "__main__":
    placement.spread(device_at(0))
    parts.run_all(globals())
