"""What is borrowed of `torch.distributed` does what we take it for."""

from typing import Any

import pytest
import torch
from torch.autograd import gradcheck

from torch_xla._engine.private import c10d


def test_a_work_that_has_ended_gives_its_result() -> None:
    result = [torch.ones(2)]
    work = c10d.done(result)
    assert work.wait() and work.is_completed() and work.get_future().value() is result


def test_a_name_that_is_not_equal_to_itself_prints_as_it_is() -> None:
    name = c10d._OfProcesses("xla")
    assert name != "xla" and name == name and f"{name}" == "xla" and torch.device(name).type == "xla"  # noqa: PLR0124
    assert hash(name) == hash("xla") and isinstance(name, str)


@pytest.mark.parametrize("size", [(4, 3), (2, 4, 3), (3,)], ids=str)
def test_the_gradients_of_a_linear_layer_are_those_of_autograd(size: tuple[int, ...]) -> None:
    x, weight, bias = (torch.randn(*n, dtype=torch.float64, requires_grad=True) for n in (size, (2, 3), (2,)))
    out = torch.nn.functional.linear(x, weight, bias)
    gradient = torch.randn_like(out)
    expected = torch.autograd.grad(out, (x, weight, bias), gradient)
    found = c10d._gradients_of_linear(None, (x, gradient, weight, [True] * 3), {})
    torch.testing.assert_close(found, list(expected))
    assert c10d._gradients_of_linear(None, (x, gradient, weight, [False, True, False]), {})[::2] == [None, None]
    assert gradcheck(torch.nn.functional.linear, (x, weight, bias))


def test_a_mesh_is_what_it_was_behind_a_call_that_fails() -> None:
    class Mesh:
        _device_type = "xla"
        mesh = torch.arange(2)

    mesh: Any = Mesh()
    with pytest.raises((AttributeError, TypeError, RuntimeError)):
        c10d.distributed("distribute_tensor", torch.ones(2), mesh, "nonsense")
    assert mesh._device_type == "xla" and type(mesh._device_type) is str


def test_operations_of_a_batch_run_in_the_order_of_their_places_and_are_told_in_that_of_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[list[int]] = []
    module: Any = c10d._distributed_c10d

    class Group: ...

    class Operation:
        def __init__(self, peer: int, op: Any = module.isend) -> None:
            self.group, self.group_peer, self.op = Group(), peer, op

    def original(operations: list[Operation]) -> list[str]:
        called.append([each.group_peer for each in operations])
        return [f"work {each.group_peer}" for each in operations]

    class Together:
        def __enter__(self) -> None:
            called.append([])

        def __exit__(self, *_: object) -> None: ...

    for each in (module, torch.distributed):
        monkeypatch.setattr(each, "batch_isend_irecv", original)
    c10d.give_batches_order(Group, lambda group, peer, is_send: (peer, is_send), Together)
    assert torch.distributed.batch_isend_irecv([Operation(3), Operation(1), Operation(2)]) == [  # type: ignore[list-item]
        "work 3", "work 1", "work 2",
    ]  # fmt: skip
    assert called == [[], [1, 2, 3]]
    foreign = Operation(9)
    foreign.group = object()  # type: ignore[assignment]
    module.batch_isend_irecv([foreign, Operation(1)])
    assert called[2:] == [[9, 1]]  # another group's are PyTorch's own
