"""Collectives of one replica: what they return, what they write, what they refuse."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm

REDUCTIONS = [xm.REDUCE_SUM, xm.REDUCE_MUL, xm.REDUCE_AND, xm.REDUCE_OR, xm.REDUCE_MIN, xm.REDUCE_MAX]


def values(*numbers: float, **kwargs: Any) -> torch.Tensor:
    return torch.tensor(numbers, device="xla", **kwargs)


@pytest.mark.parametrize("reduce_type", REDUCTIONS)
def test_reducing_a_tensor_gives_a_new_one(reduce_type: str) -> None:
    x = values(1, 2)
    y = xm.all_reduce(reduce_type, x, groups=[[0]], pin_layout=False)
    assert isinstance(y, torch.Tensor) and y is not x and y.tolist() == [1, 2]
    y.add_(1)
    assert x.tolist() == [1, 2]


def test_reducing_a_list_writes_to_its_tensors_and_returns_it() -> None:
    tensors = [values(2, 4), values(6.0, requires_grad=True)]
    assert xm.all_reduce(xm.REDUCE_SUM, tensors, scale=0.5) is tensors
    assert [t.tolist() for t in tensors] == [[1, 2], [3]]


def test_the_scale_keeps_the_dtype() -> None:
    x = values(2, 4, dtype=torch.int32)
    y = xm.all_reduce("sum", x, scale=0.5)
    assert isinstance(y, torch.Tensor) and y.dtype is torch.int32 and y.tolist() == [1, 2]


def test_gradients_flow_through_a_reduction() -> None:
    x = values(1.0, 2.0, requires_grad=True)
    (xm.all_reduce("sum", x, scale=3.0) * values(1.0, 10.0)).sum().backward()  # type: ignore[operator]
    assert x.grad is not None and x.grad.tolist() == [3, 30]
    y = values(1.0, 2.0, requires_grad=True)
    xf.all_reduce("sum", y, 3.0, [[0]]).sum().backward()
    assert y.grad is not None and y.grad.tolist() == [3, 3]
    z = values(1.0, 2.0, requires_grad=True)
    (xf.all_gather(z, dim=-1) * values(1.0, 10.0)).sum().backward()
    assert z.grad is not None and z.grad.tolist() == [1, 10]


def test_gathering_gives_the_one_part_there_is() -> None:
    x = torch.arange(6, device="xla").reshape(2, 3)
    assert torch.equal(xm.all_gather(x, dim=-1), x)  # type: ignore[arg-type]
    output = torch.zeros(2, 3, dtype=torch.int64, device="xla")
    assert xm.all_gather(x, output=output) is output
    assert torch.equal(output, x)
    parts = xm.all_gather([x, x + 1], pin_layout=False)
    assert torch.equal(parts[1], x + 1)


def test_scattering_gives_the_whole_reduction() -> None:
    x = values(2, 4)
    assert xm.reduce_scatter("sum", x, 0.5, 0, 1).tolist() == [1, 2]  # type: ignore[union-attr]
    outputs = [values(0, 0)]
    assert xm.reduce_scatter("sum", [x], 1.0, -1, 1, output=outputs) is outputs
    assert outputs[0].tolist() == [2, 4]


def test_exchanging_permuting_and_broadcasting_keep_the_values() -> None:
    x = torch.arange(6.0, device="xla").reshape(2, 3)
    assert torch.equal(xm.all_to_all(x, 0, 1, 1), x)
    assert torch.equal(xm.collective_permute(x, [[0, 0]]), x)
    assert torch.equal(xm.collective_permute(x, []), torch.zeros_like(x))
    xm.collective_broadcast([x], root_ordinal=0)
    model = torch.nn.BatchNorm1d(2).to("xla")
    xm.broadcast_master_param(model)
    assert x.flatten().tolist() == [0, 1, 2, 3, 4, 5]


def test_meeting_returns_what_this_replica_brought() -> None:
    assert xm.rendezvous("here") == [b""]
    assert xm.rendezvous("here", b"payload", [0]) == [b"payload"]
    assert xm.xla_rendezvous(b"payload", tag="here") == [b"payload"]
    assert xm.mesh_reduce("loss", {"x": values(1.0)}, lambda all_: [d["x"].device.type for d in all_]) == ["cpu"]
    assert xm.mesh_reduce("count", 3, sum) == 3


def test_only_the_master_prints(capsys: pytest.CaptureFixture[str]) -> None:
    xm.master_print("loss", 3, flush=True)
    xm.master_print("local", local=True)
    assert capsys.readouterr().out == "loss 3\nlocal\n"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda x: xm.all_reduce("avg", x),
            ValueError,
            "all_reduce(): reduce_type is 'avg'; expected one of 'sum', 'mul', 'and', 'or', 'min', 'max'",
        ),
        (
            lambda x: xm.all_reduce("sum", x, groups=[[0, 1]]),
            ValueError,
            "all_reduce(): groups [[0, 1]] do not hold each ordinal from 0 to 0 once; this program has 1 replica",
        ),
        (
            lambda x: xm.all_reduce("sum", x, groups=[0]),
            ValueError,
            "all_reduce(): groups is [0]; expected a list of lists of ordinals, such as [[0]]",
        ),
        (
            lambda x: xm.all_gather(x, dim=2),
            IndexError,
            "all_gather(): dimension out of range (expected [-2, 1], but got 2)",
        ),
        (
            lambda x: xm.all_gather(x.sum()),
            IndexError,
            "all_gather(): dimension specified as 0 but tensor has no dimensions",
        ),
        (
            lambda x: xm.all_gather(x, output=x[0]),
            ValueError,
            "output has shape [3]; the result has [2, 3]",
        ),
        (
            lambda x: xm.all_to_all(x, 0, 1, 2),
            ValueError,
            "all_to_all(): split_count is 2; this program has 1 replica",
        ),
        (
            lambda x: xm.reduce_scatter("sum", x, 1.0, 0, 2),
            ValueError,
            "reduce_scatter(): shard_count is 2; this program has 1 replica",
        ),
        (
            lambda x: xm.collective_permute(x, [[0, 1]]),
            ValueError,
            "collective_permute(): no replica has ordinal 1; this program has 1",
        ),
        (
            lambda x: xm.collective_permute(x, [[0, 0], [1, 0]]),
            ValueError,
            "collective_permute(): two sources send to one target in [[0, 0], [1, 0]]",
        ),
        (
            lambda x: xm.collective_broadcast([x], root_ordinal=1),
            ValueError,
            "collective_broadcast(): no replica has ordinal 1; this program has 1",
        ),
        (
            lambda x: xm.rendezvous("here", "text"),  # type: ignore[arg-type]
            TypeError,
            "rendezvous('here'): the payload is str; expected bytes",
        ),
        (
            lambda x: xm.rendezvous("here", b"", [0, 1]),
            ValueError,
            "rendezvous(): groups [[0, 1]] do not hold each ordinal from 0 to 0 once; this program has 1 replica",
        ),
    ],
)
def test_what_one_replica_cannot_do_is_refused(
    call: Callable[[torch.Tensor], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        call(torch.ones(2, 3, device="xla"))
    assert str(raised.value) == message
