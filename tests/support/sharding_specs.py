"""Print a tensor's sharding over four virtual CPU devices: each function is a part of
tests/api/distributed/test_meshes.py."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from functorch import compile as functorch_compile
from torch.distributed.tensor import Replicate, Shard

import torch_xla
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from tests.support import parts
from torch_xla.experimental import distributed_checkpoint as checkpoints
from torch_xla.experimental import eager_mode_context
from torch_xla.experimental.assume_pure import assume_pure

xr.use_spmd()
XLAC = torch_xla._XLAC
spec_of = XLAC._get_xla_sharding_spec

LINE = xs.Mesh(np.arange(4), (4,), ("x",))
SQUARE = xs.Mesh(np.arange(4), (2, 2), ("x", "y"))
BOTH, SWAPPED = "{devices=[2,2]0,1,2,3}", "{devices=[2,2]0,2,1,3}"
ROWS = "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"
HOST = torch.arange(16.0).view(4, 4)


def _refused(call: Callable[[], object], error: type[Exception], words: str) -> None:
    try:
        call()
    except error as found:
        assert words in str(found), found
    else:
        raise AssertionError("not refused")


def results_of_marks_with_gradients_are_divided_before_and_after_the_sync() -> None:
    for way in (xs.mark_sharding_with_gradients, xs.MarkShardingFunction.apply):
        for spec, text in ((("x", "y"), BOTH), (("x", None), ROWS), ((None, None), "{replicated}")):
            x = HOST.to("xla").requires_grad_()
            y = way(x, SQUARE, spec)  # type: ignore[arg-type]
            assert spec_of(y) == xs.wrap_as_sharded_tensor(y).sharding_spec == text
            (y @ y.T).sum().backward()
            assert spec_of(x.grad) == text
            torch_xla.sync()
            assert spec_of(y) == spec_of(x.grad) == xs.wrap_as_sharded_tensor(y).sharding_spec == text


def what_nobody_has_said_is_empty_until_a_program_has_made_it() -> None:
    a, b, unmarked = (HOST.to("xla") for _ in range(3))
    for each in (a, b):
        xs.mark_sharding(each, SQUARE, (None, None))
    product, shifted = a @ b, unmarked + 1
    assert [spec_of(each) for each in (a, product, unmarked, shifted)] == ["{replicated}", "", "", ""]
    assert XLAC._get_xla_sharding_type(a) == 0 and XLAC._get_xla_sharding_type(product) is None
    torch_xla.sync()
    assert [spec_of(each) for each in (product, unmarked, shifted)] == ["{replicated}", "", "{replicated}"]
    assert xs.wrap_as_sharded_tensor(product).sharding_spec == "{replicated}"
    with eager_mode_context(True):
        assert spec_of(a @ b) == "{replicated}"


def copies_lie_as_what_they_were_copied_from() -> None:
    x = HOST.to("xla")
    xs.mark_sharding(x, SQUARE, ("x", "y"))
    made = {"clone": x.clone(), "deepcopy": copy.deepcopy(x), "sum": x + x}
    for _ in range(2):
        assert {name: spec_of(each) for name, each in made.items()} == dict.fromkeys(made, BOTH)
        torch_xla.sync()
    assert spec_of(x.t()) == "" and spec_of(x[1:]) == ""  # the sharding of a view is not determined


def a_mark_is_taken_back_before_another_is_made() -> None:
    x = HOST.to("xla")
    xs.mark_sharding(x, SQUARE, (None, None))
    xs.mark_sharding(x, SQUARE, ("x", "y"))  # of copies there is nothing to take back
    xs.mark_sharding(x, SQUARE, ("x", "y"))
    torch_xla.sync()
    _refused(lambda: xs.mark_sharding(x, SQUARE, ("y", "x")), RuntimeError, "Existing annotation must be cleared first")
    assert spec_of(x) == BOTH
    xs.clear_sharding(x)
    assert spec_of(x) == "" and x.cpu().equal(HOST)
    xs.mark_sharding(x, SQUARE, ("y", "x"))
    assert spec_of(x) == SWAPPED
    xs.annotate_custom_sharding(x, SQUARE, ("x", "y"))
    assert spec_of(x) == BOTH
    x.add_(1)
    torch_xla.sync()
    assert spec_of(x) == BOTH and x.cpu().equal(HOST + 1)
    made = HOST.to("xla") * 2
    torch_xla.sync()
    xs.mark_sharding(made, SQUARE, ("x", None))
    xs.clear_sharding(made)
    assert spec_of(made) == "" and spec_of(xs.annotate_custom_sharding(made, SQUARE, ("x", None))) == ROWS


def marks_hold_in_whatever_traces() -> None:
    seen: list[list[str]] = []

    def compiler(graph: torch.fx.GraphModule, _: Any) -> Any:
        seen.append([node.name for node in graph.graph.nodes])
        return functorch_compile.make_boxed_func(graph.forward)

    marks: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: xs.MarkShardingFunction.apply(x, SQUARE, ("x", "y")),  # type: ignore[no-any-return]
        lambda x: xs.mark_sharding(x * 1, SQUARE, ("x", "y")),
        lambda x: xs.mark_sharding_with_gradients(x, SQUARE, ("x", "y")),
    ]
    host = HOST.div(16).requires_grad_()
    (host @ host).tanh().sum().backward()
    # Which the tracer of `torch.compile` gives for any function of autograd.
    warnings.filterwarnings("ignore", ".*should not be instantiated", DeprecationWarning)
    for mark in marks:

        def product(x: torch.Tensor) -> torch.Tensor:
            return (mark(x) @ x).tanh()  # noqa: B023

        ways: list[Callable[..., Any]] = [
            functorch_compile.aot_function(product, fw_compiler=compiler, bw_compiler=compiler),
            assume_pure(product),
            torch.compile(product, backend="openxla", fullgraph=True),
            torch.compile(product, backend="aot_eager", fullgraph=True),
        ]
        for way in ways:
            x = HOST.div(16).to("xla").requires_grad_()
            y = way(x)
            y.sum().backward()
            torch_xla.sync()
            assert x.grad is not None and host.grad is not None
            torch.testing.assert_close(x.grad.cpu(), host.grad)
            assert spec_of(x.grad) == BOTH
    assert len(seen) == 6 and all("aot_mark_sharding" in " ".join(names) for names in seen)
    _refused(
        lambda: assume_pure(lambda x: xs.mark_sharding(x, SQUARE, ("x",)))(HOST.to("xla")),
        AssertionError,
        "has 1 entries, but the tensor of shape [4, 4]",
    )


def marked_tensors_are_distributed_tensors_of_pytorch() -> None:
    x = xs.mark_sharding(HOST.to("xla"), SQUARE, ("y", None))
    spec = x._spec
    assert spec is x._spec is x._cached_spec and spec.placements == x.placements == (Replicate(), Shard(0))
    assert spec.mesh.device_type == "xla" and spec.mesh.mesh.tolist() == [[0, 1], [2, 3]]
    assert spec.mesh.mesh_dim_names == ("x", "y") and x.device_mesh == spec.mesh
    assert spec.tensor_meta.shape == (4, 4) and spec.tensor_meta.dtype == torch.float32
    x.invalidate_spec_cache()
    assert x._cached_spec is None and x._spec == spec
    told = xs.XLAShardedTensor(HOST.to("xla"), (2, 2), (0, None))
    assert told._spec.placements == (Shard(0), Replicate())
    assert xs.XLAShardedTensor(HOST.to("xla"))._spec.placements == (Replicate(),)
    for mesh in (SQUARE, LINE):
        for dim in range(2):
            placements = [Shard(dim), *[Replicate()] * (len(mesh.mesh_shape) - 1)]
            made = x.redistribute(mesh, placements, async_op=True)
            assert made.placements == made._spec.placements == tuple(placements) and made.cpu().equal(HOST)
            axes = tuple(0 if other == dim else None for other in range(2))
            assert made.partition_spec == axes and made.mesh_shape == mesh.mesh_shape
            assert made.sharding_spec == str(mesh.get_op_sharding(axes))
    assert x.redistribute(placements=[Shard(1), Shard(0)]).sharding_spec == SWAPPED
    assert xs.auto_policy is xs.api.auto_policy


def planners_of_checkpoints_tell_tensors_in_parts_from_the_rest() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)).to("xla")
    xs.mark_sharding(model[0].weight, LINE, ("x", None))  # type: ignore[arg-type]
    state = model.state_dict()
    save, load = checkpoints.SPMDSavePlanner(), checkpoints.SPMDLoadPlanner()
    save.set_up_planner(state, is_coordinator=True)
    plans, metadata = save.create_global_plan([save.create_local_plan()])
    load.set_up_planner(state, metadata, True)
    for planner, plan in ((save, plans[0]), (load, load.create_local_plan())):
        assert list(planner.sharded_state_dict) == ["0.weight"] and len(planner.unsharded_state_dict) == 3
        assert xs.wrap_if_sharded(planner.sharded_state_dict["0.weight"]).sharding_spec == "{devices=[4,1]0,1,2,3}"
        fqns = [(item.index if planner is save else item.dest_index).fqn for item in plan.items]  # type: ignore[union-attr]
        assert fqns.count("0.weight") == 4 and len(fqns) == 7
    shards = xs.wrap_as_sharded_tensor(model[0].weight).local_shards
    for item in plans[0].items:
        if item.index.fqn == "0.weight":
            assert item.index.index is not None
            assert save.resolve_data(item).equal(shards[item.index.index].unpadded_data)


def batches_are_divided_by_the_names_of_their_parts() -> None:
    batches = [{"x": HOST, "y": HOST.view(2, 2, 4)}]
    rows = xs.ShardingSpec(SQUARE, ("x", None))

    def first(sharding: Any) -> Any:
        return next(iter(pl.MpDeviceLoader(batches, "xla", input_sharding=sharding)))

    made = first({"x": rows, "y": None, "z": rows})
    assert spec_of(made["x"]) == ROWS and spec_of(made["y"]) == ""
    _refused(lambda: first({"x": rows}), KeyError, "no entry for ['y'] of the batch")
    assert spec_of(first(rows)["x"]) == ROWS and spec_of(first(None)["x"]) == ""


def a_part_of_a_batch_of_the_only_process_is_the_batch() -> None:
    spec = xs.ShardingSpec(LINE, ("x", None), minibatch=True)
    uneven = torch.arange(12.0).view(6, 2)
    made = next(iter(pl.MpDeviceLoader([uneven], "xla", input_sharding=spec)))
    assert made.cpu().equal(uneven) and spec_of(made) == "{devices=[4,1]0,1,2,3}"
    assert (made + 1).sum().item() == (uneven + 1).sum().item()


if __name__ == "__main__":
    parts.run_all(globals())
