"""A replay ends where a hook at a node of its own backward pass comes or goes, and not for hooks elsewhere."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla
from torch_xla._engine.compat.patches.autograd_observers import hooks_of_leaf
from torch_xla._engine.compiled.replay.node_hooks import NodeHooks


def node_of(leaf: torch.Tensor) -> Any:
    return torch.autograd.graph.get_gradient_edge(leaf).node


HOOKS: dict[str, Callable[[Any], Any]] = {
    "behind": lambda node: node.register_hook(lambda *_: None),
    "before": lambda node: node.register_prehook(lambda *_: None),
}


@pytest.mark.parametrize("where", HOOKS)
def test_hooks_of_a_leaf_are_seen_when_they_come_and_when_they_go(where: str) -> None:
    leaf, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    node, node_of_other = node_of(leaf), node_of(other)
    guard = NodeHooks([leaf], [leaf])
    kept = HOOKS[where](node_of_other)
    assert guard.unchanged() and guard.unchanged()
    handle = HOOKS[where](node)
    assert not guard.unchanged()
    assert sum(map(len, hooks_of_leaf(leaf))) == 1
    with_it = NodeHooks([leaf], [leaf])
    assert with_it.unchanged()
    handle.remove()
    assert guard.unchanged() and not with_it.unchanged()
    kept.remove()
    del node


def test_a_hook_that_dies_with_its_node_is_no_longer_there() -> None:
    leaf = nn.Parameter(torch.ones(2))
    node = node_of(leaf)
    node.register_hook(lambda *_: None)
    guard = NodeHooks([leaf], [leaf])
    del node
    assert not guard.unchanged()


def test_any_hook_may_matter_to_a_graph_from_outside() -> None:
    leaf, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    product = leaf * 2
    guard = NodeHooks([leaf], [leaf, product])
    assert guard.unchanged()
    HOOKS["behind"](node_of(other))
    assert not guard.unchanged()


def trained() -> tuple[nn.Module, Callable[..., Any]]:
    model = nn.Linear(3, 2).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, torch_xla.compile(step, replay=True)


def test_a_replay_goes_on_where_another_model_moves_or_gets_hooks() -> None:
    x = torch.ones(4, 3, device="xla")
    _, step = trained()
    for _ in range(6):
        step(x)
    assert step.is_replayed
    other, other_step = trained()  # moving a module registers hooks at the nodes of what it leaves behind
    node = node_of(other.weight)
    node.register_hook(lambda *_: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(6):
            other_step(x)
            step(x)
            assert step.why_recorded == ""


def test_a_replay_ends_with_the_hook_that_it_was_recorded_with() -> None:
    x = torch.ones(4, 3, device="xla")
    model, step = trained()
    node = node_of(model.weight)
    model.hook = lambda gradients: (gradients[0] * 0,)  # found from the function
    handle = node.register_prehook(model.hook)
    before = model.weight.tolist()
    for _ in range(6):
        step(x)
    assert step.is_replayed, step.why_recorded
    assert model.weight.tolist() == before
    handle.remove()
    with pytest.warns(UserWarning, match="a hook was registered on an autograd node of its backward pass, or removed"):
        step(x)
    assert model.weight.tolist() != before
