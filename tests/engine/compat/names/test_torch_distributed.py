"""The private names of `torch.distributed` behave as expected."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck

from torch_xla._engine.compat.names import torch_distributed


def test_a_work_that_has_ended_gives_its_result() -> None:
    result = [torch.ones(2)]
    work = torch_distributed.done(result)
    assert work.wait() and work.is_completed() and work.get_future().value() is result


def test_pytorch_leaves_the_recording_of_groups_in_python_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[str] = set()
    made: list[Any] = []
    monkeypatch.setattr(torch_distributed._distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", taken, raising=False)
    monkeypatch.setattr(
        torch_distributed.Backend, "register_backend", lambda *args, **kwargs: made.append((args, kwargs))
    )
    torch_distributed.register_group("of_python", dict)
    assert made == [(("of_python", dict), {"extended_api": True, "devices": ["of_python"]})]
    assert taken == {"of_python"}


def test_a_name_that_is_not_equal_to_itself_prints_as_it_is() -> None:
    name = torch_distributed._OfProcesses("xla")
    assert name != "xla" and name == name and f"{name}" == "xla" and torch.device(name).type == "xla"  # noqa: PLR0124
    assert hash(name) == hash("xla") and isinstance(name, str)


@pytest.mark.parametrize("size", [(4, 3), (2, 4, 3), (3,)], ids=str)
def test_the_gradients_of_a_linear_layer_are_those_of_autograd(size: tuple[int, ...]) -> None:
    x, weight, bias = (torch.randn(*n, dtype=torch.float64, requires_grad=True) for n in (size, (2, 3), (2,)))
    out = torch.nn.functional.linear(x, weight, bias)
    gradient = torch.randn_like(out)
    expected = torch.autograd.grad(out, (x, weight, bias), gradient)
    found = torch_distributed._gradients_of_linear(None, (x, gradient, weight, [True] * 3), {})
    torch.testing.assert_close(found, list(expected))
    assert torch_distributed._gradients_of_linear(None, (x, gradient, weight, [False, True, False]), {})[::2] == [
        None,
        None,
    ]
    assert gradcheck(torch.nn.functional.linear, (x, weight, bias))


def test_a_mesh_is_what_it_was_behind_a_call_that_fails() -> None:
    class Mesh:
        _device_type = "xla"
        mesh = torch.arange(2)

    mesh: Any = Mesh()
    with pytest.raises((AttributeError, TypeError, RuntimeError)):
        torch_distributed.distributed("distribute_tensor", torch.ones(2), mesh, "nonsense")
    assert mesh._device_type == "xla" and type(mesh._device_type) is str


def test_the_operations_of_a_batch_are_called_together(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    module: Any = torch_distributed._distributed_c10d

    class Group: ...

    class Operation:
        def __init__(self, group: Any) -> None:
            self.group = group

    def original(operations: list[Operation]) -> list[str]:
        called.append(f"batch of {len(operations)}")
        return ["work"] * len(operations)

    @contextmanager
    def together() -> Iterator[None]:
        called.append("begin")
        yield
        called.append("end")

    for each in (module, torch.distributed):
        monkeypatch.setattr(each, "batch_isend_irecv", original)
    torch_distributed.give_batches_end(Group, together)
    ours = [Operation(Group()), Operation(Group())]
    assert torch.distributed.batch_isend_irecv(ours) == ["work", "work"]  # type: ignore[arg-type]
    assert called == ["begin", "batch of 2", "end"]
    module.batch_isend_irecv([Operation(object()), *ours])
    assert called[3:] == ["batch of 3"]  # another group's are PyTorch's own
