"""SPMD over four virtual CPU devices: each function is a part of tests/api/distributed/test_meshes.py."""

import copy
import os
import pickle
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from tests.support import parts
from torch_xla._engine.diagnostics.logs import switches

SQUARE = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
LINE = xs.Mesh(np.arange(4), (4,), ("data",))


def _refused(call: Callable[[], object], error: type[Exception], words: str) -> None:
    try:
        call()
    except error as found:
        assert words in str(found), found
    else:
        raise AssertionError("not refused")


def _shapes(tensor: torch.Tensor) -> list[list[int]]:
    return [list(shard.data.shape) for shard in xs.wrap_as_sharded_tensor(tensor).local_shards]


def tensors_from_before_are_copied_to_every_device() -> None:
    before = torch.arange(4.0, device="xla") + 1
    kept = torch.ones(4).to("xla")
    try:
        xr.use_spmd()
    except UserWarning as warning:  # warnings are errors here
        assert "copied to every device" in str(warning)
    assert xr.is_spmd()
    assert torch_xla._XLAC._get_xla_sharding_spec(before) == "{replicated}"
    assert (before * kept).tolist() == [1, 2, 3, 4]
    doubled = before * 2
    torch_xla.sync()
    assert xs.wrap_as_sharded_tensor(doubled).sharding_spec == "{replicated}"
    xs.mark_sharding(before, LINE, ("data",))
    assert _shapes(before) == [[1]] * 4 and before.tolist() == [1, 2, 3, 4]


def there_is_one_ordinal_and_four_devices() -> None:
    assert torch_xla.devices() == [torch.device("xla:0")] and torch_xla.device() == torch.device("xla:0")
    assert torch_xla.real_devices() == ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
    assert (xr.world_size(), xr.global_ordinal(), xr.process_count()) == (1, 0, 1)
    assert xr.global_device_count() == xr.addressable_device_count() == xr.local_device_count() == 1
    assert xr.global_runtime_device_count() == xr.addressable_runtime_device_count() == torch_xla.device_count() == 4
    _refused(lambda: torch.ones(1, device="xla:1"), RuntimeError, "under SPMD xla:0 stands for all devices")


def tensors_are_divided_as_marked() -> None:
    host = torch.arange(32.0).view(8, 4)
    for mesh, spec, shape, text in (
        (SQUARE, ("data", None), [4, 4], "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"),
        (SQUARE, ("model", "data"), [4, 2], "{devices=[2,2]0,2,1,3}"),
        (SQUARE, (0, 1), [4, 2], "{devices=[2,2]0,1,2,3}"),
        (SQUARE, (("data", "model"), None), [2, 4], "{devices=[4,1]0,1,2,3}"),
        (SQUARE, (None, ("model", "data")), [8, 1], "{devices=[1,4]0,2,1,3}"),
        (SQUARE, (None, None), [8, 4], "{replicated}"),
        (LINE, (None, "data"), [8, 1], "{devices=[1,4]0,1,2,3}"),
    ):
        t = host.to("xla")
        marked = xs.mark_sharding(t, mesh, spec)  # type: ignore[arg-type]
        assert marked.sharding_spec == text, (marked.sharding_spec, text)
        assert str(mesh.get_op_sharding(spec)) == text  # type: ignore[arg-type]
        assert torch_xla._XLAC._get_xla_sharding_spec(t) == text
        assert _shapes(t) == [shape] * 4
        for shard in marked.local_shards:
            assert shard.data.equal(host if shard.indices is ... else host[tuple(shard.indices)])
        assert t.cpu().equal(host) and (t + 1).cpu().equal(host + 1) and t[1, 2].item() == 6
        assert xs.clear_sharding(marked) is t and _shapes(t) == [[8, 4]] * 4
    zero = torch.tensor(3.0, device="xla")
    assert xs.mark_sharding(zero, SQUARE, ()).sharding_spec == "{replicated}" and zero.item() == 3


def what_does_not_fit_is_refused_with_the_remedy() -> None:
    t = torch.ones(6, 4, device="xla")
    _refused(lambda: xs.mark_sharding(t, LINE, ("data",)), ValueError, "has 1 entries, but the tensor of shape [6, 4]")
    _refused(lambda: xs.mark_sharding(t, LINE, ("rows", None)), ValueError, "no axis 'rows'")
    large = xs.Mesh(np.arange(8), (8,), ("data",))
    _refused(lambda: xs.mark_sharding(t, large, (None, "data")), ValueError, "has 8 devices, and this program has 4")
    _refused(lambda: xs.mark_sharding(torch.ones(2, 2), LINE, (None, None)), ValueError, "not on cpu")
    _refused(lambda: xs.Mesh(np.arange(8), (8,)).get_jax_mesh(), ValueError, "this program has 4")
    none: Any = None
    _refused(lambda: xs.mark_sharding(t, LINE, none), TypeError, "expected a partition spec, such as (None, None)")
    _refused(lambda: xs.mark_sharding([t], LINE, (None,)), TypeError, "expected a tensor, not a list")  # type: ignore[arg-type]
    batches = [torch.ones(4, 4)]
    _refused(lambda: list(pl.MpDeviceLoader(batches, "xla", input_sharding="data")), TypeError, "a ShardingSpec")
    assert t.cpu().equal(torch.ones(6, 4))


def what_is_marked_stays_divided_however_it_is_written() -> None:
    w = torch.zeros(8, 4).to("xla")
    xs.mark_sharding(w, SQUARE, ("data", "model"))
    expected = torch.zeros(8, 4)
    other = torch.arange(32.0).view(8, 4)

    def writes(t: torch.Tensor, source: torch.Tensor) -> list[Callable[[], object]]:
        return [
            lambda: t.add_(1),
            lambda: t.copy_(source),
            lambda: t.zero_(),
            lambda: nn.init.constant_(t, 3.0),
            lambda: t[2:, 1:].fill_(5),
            lambda: t.copy_(torch.full((8, 4), 2.0)),
            lambda: t.t().mul_(2),
        ]

    for ours, theirs in zip(writes(w, other.to("xla")), writes(expected, other), strict=True):
        ours()
        theirs()
        torch_xla.sync()
        assert xs.wrap_if_sharded(w).sharding_spec == "{devices=[2,2]0,1,2,3}"
        assert _shapes(w) == [[4, 2]] * 4 and w.cpu().equal(expected)


def a_marked_tensor_is_the_same_tensor() -> None:
    x = torch.arange(8.0).to("xla").requires_grad_()
    marked = xs.mark_sharding(x, LINE, ("data",))
    assert isinstance(marked, xs.XLAShardedTensor) and isinstance(marked, torch.distributed.tensor.DTensor)
    assert marked.global_tensor is x and marked.mesh_shape == (4,) and marked.partition_spec == ("data",)
    assert marked.sharding_type is xs.ShardingType.TILED
    (marked * marked).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2 * n for n in range(8)]
    assert marked.grad is not None
    first, (second, third) = marked * 2, (marked.detach() + 1).split(4)
    for made in (first, second, third):
        assert isinstance(made, xs.XLAShardedTensor) and type(made.global_tensor) is torch.Tensor
    assert marked.cpu().tolist() == x.tolist() and type(marked.cpu()) is torch.Tensor
    square = [
        xs.mark_sharding(torch.ones(4, 4, device="xla"), SQUARE, spec)
        for spec in (("data", None), (None, ("model", "data")), ("model", 0))
    ]
    assert [each.placements for each in square] == [(Shard(0), Replicate()), (Shard(1), Shard(1)), (Shard(1), Shard(0))]
    assert [each.detach().placements for each in square] == [each.placements for each in square]
    _refused(
        lambda: xs.wrap_as_sharded_tensor(x, (4,), ("data",)).placements,
        RuntimeError,
        "Use the result of mark_sharding",
    )
    assert "XLAShardedTensor(tensor(" in repr(marked) and "8." not in repr(x)
    again = copy.deepcopy(x)
    assert again.tolist() == x.tolist() and pickle.loads(pickle.dumps(x.detach().cpu())).tolist() == x.tolist()
    assert xs.wrap_if_sharded(x).sharding_spec == "{devices=[4]0,1,2,3}"
    assert xs.wrap_if_sharded(torch.ones(2, device="xla")).__class__ is torch.Tensor


def shards_are_loaded() -> None:
    t = xs.mark_sharding(torch.zeros(8, 2, device="xla"), SQUARE, ("data", "model"))
    found = t.local_shards
    assert [shard.shard_device for shard in found] == ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
    assert [shard.replica_id for shard in found] == [0] * 4
    for index, shard in enumerate(found):
        shard.unpadded_data.fill_(index)
    t.load_local_shards_(found)
    expected = torch.tensor([[0.0, 1.0]] * 4 + [[2.0, 3.0]] * 4)
    assert t.global_tensor.cpu().equal(expected) and _shapes(t) == [[4, 1]] * 4
    assert [shard.indices for shard in found[:2]] == [[slice(0, 4, 1), slice(j, j + 1, 1)] for j in range(2)]
    _refused(lambda: t.load_local_shards_(found[:2]), RuntimeError, "got 2 shards for the 4 devices")
    for wrong, text in (
        (torch.ones(3, 1), "of shape [3, 1]; expected torch.float32 of [4, 1]"),
        (torch.ones(4), "[4]"),
    ):
        found[1].data = wrong
        _refused(lambda: t.load_local_shards_(found), RuntimeError, text)  # noqa: B023
    assert all(shard.indices is ... for shard in xs.mark_sharding(torch.ones(4).to("xla"), LINE, (None,)).local_shards)


def shards_of_the_host_become_one_tensor() -> None:
    join = torch_xla._XLAC._global_tensor_from_cpu_shards
    shards, whole = list(torch.arange(16).split(4)), torch.arange(16)
    rows = LINE.get_op_sharding(("data",))
    assert join(shards, rows).cpu().equal(whole)
    for size in range(13, 17):  # what is behind the end is padding
        made = join(shards, rows, torch.Size((size,)))
        assert made.shape == (size,) and made.cpu().equal(whole[:size])
        assert (made + 1).sum().item() == size * (size + 1) / 2
    square = SQUARE.get_op_sharding(("data", "model"))
    assert join([each.view(2, 2) for each in shards], square).cpu().tolist() == [
        [0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]
    ]  # fmt: skip
    assert join([whole] * 4, LINE.get_op_sharding((None,)), whole.shape).cpu().equal(whole)
    for parts_, sharding, size, words in (
        (shards, rows, (12,), "expected torch.int64 of [3]"),
        (shards, rows, (17,), "expected torch.int64 of [5]"),
        (shards, rows, (4, 4), "does not describe a tensor of 2 dimensions"),
        (shards[:3], rows, (16,), "got 3 shards for the 4 devices"),
        ([each.view(2, 2) for each in shards], rows, None, "has 1 dimensions"),
        ([whole] * 4, LINE.get_op_sharding((None,)), (15,), "expected torch.int64 of [15]"),
        ([], rows, None, "there are no shards"),
    ):
        _refused(lambda: join(parts_, sharding, size), RuntimeError, words)  # type: ignore[arg-type] # noqa: B023


def gradients_are_divided_too() -> None:
    x = torch.arange(8.0).to("xla").requires_grad_()
    y = xs.mark_sharding_with_gradients(x * 2, LINE, ("data",))
    (y * y).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [8 * n for n in range(8)]
    assert "xla::sharding_constraint" in torch_xla._XLAC._get_xla_tensors_text(
        [xs.mark_sharding_with_gradients(x * 2, LINE, ("data",))]
    )


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))


Layout = Callable[[nn.Module], Any]


def _data(model: nn.Module) -> xs.Mesh:
    return LINE


def _fully(model: nn.Module) -> xs.Mesh:
    for parameter in model.parameters():
        xs.mark_sharding(parameter, LINE, ("data", *[None] * (parameter.dim() - 1)))
    return LINE


def _tensor(model: nn.Module) -> xs.Mesh:
    first, _, _, last = model.children()
    xs.mark_sharding(first.weight, SQUARE, ("model", None))  # type: ignore[arg-type]
    xs.mark_sharding(first.bias, SQUARE, ("model",))  # type: ignore[arg-type]
    xs.mark_sharding(last.weight, SQUARE, (None, "model"))  # type: ignore[arg-type]
    return SQUARE


def _train(device: str, layout: Layout | None, make: Callable[..., torch.optim.Optimizer]) -> tuple[Any, ...]:
    model = _model().to(device)
    mesh = layout(model) if layout else None
    optimizer = make(model.parameters())
    losses, compiles = [], []
    for step in range(6):
        before = met.counter_value("UncachedCompile") or 0
        x = (torch.linspace(-1, 1, 128).view(8, 16) + step).to(device)
        y = torch.linspace(-2, 1, 64).view(8, 8).to(device)
        if mesh is not None:
            xs.mark_sharding(x, mesh, ("data", None))
            xs.mark_sharding(y, mesh, ("data", None))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.detach())
        compiles.append((met.counter_value("UncachedCompile") or 0) - before)
    return [float(loss) for loss in losses], compiles, model, optimizer


def a_training_is_the_same_in_every_layout() -> None:
    for make in (
        lambda parameters: torch.optim.AdamW(parameters, lr=0.05),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    ):
        expected, _, host, _ = _train("cpu", None, make)
        _, alone, _, _ = _train("xla", None, make)
        for layout in (_data, _fully, _tensor):
            found, compiles, model, optimizer = _train("xla", layout, make)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            assert sum(compiles) <= sum(alone) and compiles[3:] == [0, 0, 0], (layout, compiles, alone)
            for ours, theirs in zip(model.parameters(), host.parameters(), strict=True):
                torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-4)
            for parameter in model.parameters():
                states = optimizer.state[parameter].values()
                for state in [each for each in states if each.shape == parameter.shape]:
                    assert _shapes(state) == _shapes(parameter), (layout, parameter.shape, _shapes(state))
            if layout is _fully:
                assert _shapes(next(model.parameters())) == [[8, 16]] * 4


def a_value_that_is_read_leaves_others_that_are_divided() -> None:
    host = torch.arange(32.0).view(8, 4)
    x, w = host.to("xla"), torch.ones(4, 6).to("xla")
    xs.mark_sharding(x, LINE, ("data", None))
    y = x @ w  # divided as XLA chooses, and left on the tape when z is read
    z = y.sum(1) * 2
    q, r = (y + 1).sum(0), x * 2
    expected = host @ torch.ones(4, 6)
    assert z.cpu().equal(expected.sum(1) * 2)
    assert q.cpu().equal((expected + 1).sum(0)) and r.cpu().equal(host * 2)


def memory_is_given_away() -> None:
    w = torch.zeros(8, 4).to("xla")
    xs.mark_sharding(w, SQUARE, ("data", "model"))
    w.add_(1)
    torch_xla.sync()
    before = w.untyped_storage().value.buffer  # type: ignore[attr-defined]
    w.add_(1)
    torch_xla.sync(wait=True)
    assert before.is_deleted() and w.cpu().equal(torch.full((8, 4), 2.0))


def dumps_say_how_results_are_divided() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(XLA_SAVE_TENSORS_FILE=f"{folder}/graphs", XLA_SAVE_TENSORS_FMT="hlo")
        switches.apply_settings()
        x = torch.ones(8, 4).to("xla")
        xs.mark_sharding(x, SQUARE, ("data", "model"))
        y, z = x * 2, x.sum()
        torch_xla.sync()
        del os.environ["XLA_SAVE_TENSORS_FILE"], os.environ["XLA_SAVE_TENSORS_FMT"]
        switches.apply_settings()
        (section,) = re.findall(
            r"#OUTPUT_SHARDING_BEGIN\n(.*?)#OUTPUT_SHARDING_END", Path(folder, "graphs.0").read_text(), re.DOTALL
        )
    assert sorted(section.splitlines()) == ["{devices=[2,2]0,1,2,3}", "{replicated}"], section
    assert y.cpu().equal(torch.full((8, 4), 2.0)) and z.item() == 32


def work_over_a_mesh_is_counted() -> None:
    mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
    torch_xla.sync()
    met.clear_all()
    x = torch.ones(8, 4).to("xla")
    assert met.counter_value("VirtualDeviceUsage") == 1 and met.counter_value("CreateOpSharding") is None
    xs.mark_sharding(x, mesh, ("data", None))
    xs.mark_sharding(torch.ones(8, 4).to("xla"), mesh, ("data", None))
    xs.mark_sharding(torch.ones(8, 4).to("xla"), mesh, (0, None))
    assert met.counter_value("CreateOpSharding") == 1 and met.counter_value("XlaMarkSharding") == 3
    assert mesh.get_op_sharding(("data", None)) is mesh.get_op_sharding((("data",), None))
    xs.mark_sharding(torch.ones(8, 4).to("xla"), mesh, ("data", "model"))
    assert met.counter_value("CreateOpSharding") == 2 and met.counter_value("VirtualDeviceUsage") == 8
    torch_xla.sync()
    met.clear_all()
    for _ in range(3):
        (x * 2).sum().item()
    (count, total, _), (runs, time, _) = met.metric_data("ExecuteReplicatedTime"), met.metric_data("ExecuteTime")
    assert (count, total) == (runs, time) and count == met.counter_value("ExecuteReplicated") == 3
    assert "ExecuteReplicatedTime" in met.short_metrics_report()


def an_operator_alone_draws_what_the_whole_step_drew() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.pt"
        x = xs.mark_sharding(torch.ones(8, 4).to("xla"), LINE, ("data", None)).global_tensor
        torch_xla.sync()
        with torch_xla.debug.capture_step(path, True):
            y = torch.nn.functional.dropout(x, 0.5) * torch.rand(8, 4, device="xla")
            torch_xla.sync()
        tensors = torch.load(path, weights_only=True)["tensors"]
        last = max((name for name in tensors if ".result." in name), key=lambda name: int(name.rpartition(".")[2]))
        assert torch.equal(tensors[last], y.cpu()) and torch.equal(tensors["0.output.0"], y.cpu())
        assert 0 < tensors[last].count_nonzero() < 32


if __name__ == "__main__":
    parts.run_all(globals())
