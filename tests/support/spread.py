"""Values divided among four virtual CPU devices: each function is a part of tests/engine/sharding/test_placement.py."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable

import numpy as np
import torch
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.runtime
from tests.support import parts
from torch_xla._engine.compile.disk import disk_cache
from torch_xla._engine.compile.stages import stage_cuts
from torch_xla._engine.ir.graph_text import to_text
from torch_xla._engine.ir.sharding import Sharding
from torch_xla._engine.lowering.machinery.jax_sharding import from_jax
from torch_xla._engine.metrics import counters
from torch_xla._engine.sharding import placement
from torch_xla._engine.step import pending_graph
from torch_xla._engine.step.schedule import clear_schedules
from torch_xla._engine.tensor.device import device_at

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


def a_step_without_inputs_is_computed_on_every_device() -> None:
    made = torch.arange(16.0, device="xla:0").view(4, 4).mm(torch.ones(4, 4, device="xla:0"))
    torch_xla.sync()
    assert len(_shards(made)) == 4
    assert torch.equal(made.cpu(), torch.arange(16.0).view(4, 4).mm(torch.ones(4, 4)))


def a_constraint_in_the_middle_holds() -> None:
    x = torch.arange(32.0).view(8, 4).to("xla")
    y = placement.constrained(x * 2, ALL) + 1
    text = to_text(pending_graph.graph_of([y]).graph)
    assert "xla::sharding_constraint" in text
    assert placement.sharding_of(y) == ALL
    assert y.cpu().equal(torch.arange(32.0).view(8, 4) * 2 + 1)


def the_graph_says_how_its_inputs_are_divided() -> None:
    x = torch.ones(8, 4).to("xla")
    plain = to_text(pending_graph.graph_of([x + 1]).graph)
    placement.place(x, BOTH)
    divided = to_text(pending_graph.graph_of([x + 1]).graph)
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


def copies_that_are_divided_have_memory_of_their_own() -> None:
    host = torch.arange(8.0)
    for sharding in (ROWS, Sharding(((1,),)), ALL, None):
        x = host.to("xla")
        placement.place(x, ROWS)
        for _ in range(2):  # as it was uploaded, and as a program wrote it
            x.add_(1)
            torch_xla.sync()
            copied = x.clone()
            placement.place(copied, sharding)
            x.mul_(2)
            copied.sub_(1)
            torch_xla.sync()
            assert copied.cpu().equal(x.cpu() / 2 - 1), (sharding, x, copied)
        assert x.cpu().equal(((host + 1) * 2 + 1) * 2)


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


def _counted() -> list[int]:
    return [counters.value_of(name) or 0 for name in ("StableHloCompile", "PersistentCacheHit", "StagedProgram")]


def _deep_model() -> torch.nn.Sequential:
    def layer() -> torch.nn.Module:
        wide, narrow = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        return torch.nn.Sequential(wide, torch.nn.Tanh(), narrow, torch.nn.LayerNorm(8), torch.nn.GELU())

    return torch.nn.Sequential(*[layer() for _ in range(6)])


def _of_a_deep_model() -> tuple[list[float], list[int], list[object]]:
    """Losses of some steps, what they added to the counters, and how the parameters are divided at the end."""
    clear_schedules()
    before = _counted()
    torch.manual_seed(0)
    model = _deep_model().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for layer in model:
        placement.place(layer[0].weight, COLUMNS)
    x = torch.linspace(-1, 1, 64).view(8, 8).to("xla")
    placement.place(x, ROWS)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
    added = [now - old for now, old in zip(_counted(), before, strict=True)]
    return losses, added, [placement.sharding_of(p) for p in model.parameters()]


def _with_a_cache(place: str) -> None:
    """Prints what the deep model gives whole and in stages, with executables kept at `place`."""
    torch_xla.runtime.initialize_cache(place)
    disk_cache.WORTH_KEEPING_SECONDS = 0.0
    stage_cuts.LEAST_BYTES_ON_HOST = 1
    found = []
    for spared in ("0", "1"):
        os.environ["XLA_STAGE_OPERATIONS"] = spared
        losses, added, shardings = _of_a_deep_model()
        found.append([losses, added, list(map(str, shardings))])
    print(json.dumps(found))


def what_is_divided_is_found_on_disk_by_another_process_whole_and_in_stages() -> None:
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-W", "error", "-m", "tests.support.spread", place]
        done = [subprocess.run(command, capture_output=True, text=True) for _ in range(2)]
    assert not any(each.returncode for each in done), done[0].stderr + done[1].stderr
    runs = zip(*(json.loads(each.stdout) for each in done), strict=True)
    for staged, ((losses, first, placed), (again, second, placed_again)) in enumerate(runs):
        assert losses == again and placed == placed_again
        assert (first[2] > 0) == bool(staged) and first[0] > 0 and first[1] == 0, first
        assert second[0] == 0 and second[1] > 0 and second[2] == first[2], second
        torch.testing.assert_close(losses, _expected_of_a_deep_model(), rtol=1e-4, atol=1e-6)
        assert placed[0] == str(COLUMNS)


def _expected_of_a_deep_model() -> list[float]:
    torch.manual_seed(0)
    model = _deep_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, losses = torch.linspace(-1, 1, 64).view(8, 8), []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    placement.spread(device_at(0))
    if len(sys.argv) > 1:
        _with_a_cache(sys.argv[1])
    else:
        parts.run_all(globals())
