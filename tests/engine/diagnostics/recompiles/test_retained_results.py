"""The owners of a step's results: variables, and graphs of gradients."""

import torch
from torch.utils.checkpoint import checkpoint

from torch_xla._engine.diagnostics.recompiles.retained_results import keepers
from torch_xla._engine.ir.graph import Operation, decode
from torch_xla._engine.tensor.device import current_index, device_at


def recorded(name: str) -> list[Operation]:
    """The operations of this name on the tape."""
    return [
        each for each in decode(device_at(current_index()).tape.code)[1] if str(each.plan.op) == f"aten.{name}.default"
    ]


def kept(name: str) -> str:
    return keepers(device_at(current_index()).target, recorded(name))


def test_variables_are_named() -> None:
    x = torch.ones(3).to("xla")
    batch = {"hidden": (x * 2).tanh()}
    assert kept("tanh") == "'batch['hidden']'" and kept("exp") == ""
    more = [batch["hidden"].exp() for _ in range(4)]
    assert kept("exp") == "'more[0]', 'more[1]' and 2 more"
    del batch["hidden"], more
    assert kept("tanh") == ""


def test_graphs_of_gradients_are_named() -> None:
    weight = torch.ones(3).to("xla").requires_grad_()
    loss = (weight * 2).tanh().square().sum()
    assert kept("tanh") == "the graph of the gradient of 'loss'"
    loss.backward()
    assert kept("tanh") == ""  # freed


def test_looking_recomputes_nothing() -> None:
    weight, calls = torch.ones(3).to("xla").requires_grad_(), []

    def forward(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return (x * 2).tanh().exp()

    loss = checkpoint(forward, weight, use_reentrant=False).sum()
    tape = device_at(current_index()).tape
    length = len(tape.code)
    assert kept("tanh") == "" and len(calls) == 1 and len(tape.code) == length
    loss.backward()
    assert len(calls) == 2


def test_what_hooks_have_packed_stays_packed() -> None:
    weight, unpacked = torch.ones(3).to("xla").requires_grad_(), []

    def unpack(packed: tuple[torch.Tensor]) -> torch.Tensor:
        unpacked.append(1)
        return packed[0]

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (tensor,), unpack):
        loss = (weight * 2).tanh().sum()
    kept("tanh")
    assert not unpacked and loss.requires_grad
