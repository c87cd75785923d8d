"""The roles of a program's inputs in a layout."""

import torch
from torch import nn

import torch_xla
from tests.support.inputs_of_a_layout import GRAPH, ROLES
from torch_xla._engine.planning.sharding_search.input_roles import RoleKind, groups_of, modules_alive, roles_of
from torch_xla._engine.step.pending_graph import Pending, graph_of
from torch_xla._engine.tensor.storage import snapshot


def test_parameters_of_one_name_are_a_group() -> None:
    together = groups_of(GRAPH, ROLES, by_name=True)
    assert [(group.name, group.members, group.names, group.bytes) for group in together] == [
        ("layers.*.weight", (0, 1, 2), ("layers.0.weight", "layers.1.weight"), 3 * 8 * 8 * 4),
        ("batches of 4", (3,), (), 4 * 16 * 4),
    ]
    assert [group.is_batch for group in together] == [False, True]
    alone = groups_of(GRAPH, ROLES, by_name=False)
    assert [(group.name, group.members) for group in alone[:2]] == [
        ("layers.1.weight", (1, 2)),
        ("layers.0.weight", (0,)),
    ]


def roles(found: Pending, results: list[torch.Tensor], model: nn.Module) -> dict[str, tuple[RoleKind, int]]:
    """RoleKind and owner of each input, by a name for it."""
    outputs = [snapshot(each) for each in results]
    gathered = roles_of(found.graph, found.inputs, outputs, {"": model})
    return {
        role.name or f"{spec.size}": (role.kind, role.owner)
        for role, spec in zip(gathered, found.graph.inputs, strict=True)
    }


def test_parameters_buffers_and_batches_of_a_forward_pass() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).eval().to("xla")
    x, rate = torch.ones(2, 4).to("xla"), torch.tensor(2.0).to("xla")
    torch_xla.sync()
    result = model(x) * rate
    found = roles(graph_of([result]), [result], model)
    kinds = {name: kind for name, (kind, _) in found.items()}
    assert kinds["0.weight"] is kinds["0.bias"] is kinds["1.weight"] is RoleKind.PARAMETER
    assert (
        kinds["1.running_mean"] is RoleKind.WHOLE
        and kinds["(2, 4)"] is RoleKind.BATCH
        and kinds["()"] is RoleKind.WHOLE
    )


def test_gradients_and_states_lie_as_their_parameter_does() -> None:
    model = nn.Linear(4, 6, bias=False).to("xla")
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.ones(2, 4).to("xla")).sum().backward()
        optimizer.step()
        torch_xla.sync()
    optimizer.step()
    state = optimizer.state[model.weight]
    results = [model.weight, state["exp_avg"], state["exp_avg_sq"]]
    pending = graph_of(results)
    gathered = roles_of(pending.graph, pending.inputs, [snapshot(each) for each in results], {"": model})
    (owner,) = [index for index, role in enumerate(gathered) if role.kind is RoleKind.PARAMETER]
    followers = [role for role in gathered if role.kind is RoleKind.FOLLOWER]
    assert gathered[owner].name == "weight" and len(followers) == 3 and {role.owner for role in followers} == {owner}
    assert all(
        spec.size != (6, 4) or role.kind is not RoleKind.BATCH
        for role, spec in zip(gathered, pending.graph.inputs, strict=True)
    )


def test_the_modules_that_no_other_contains() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU()).to("xla")
    on_cpu = nn.Linear(2, 2)
    found = list(modules_alive().values())
    assert model in found and model[0] not in found and on_cpu not in found


def test_half_made_modules_and_optimizers_are_passed_over() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            pass

    class Without(torch.optim.Optimizer):
        def __init__(self) -> None:
            pass

    half, without, model = Half(), Without(), nn.Linear(2, 2).to("xla")
    assert model in modules_alive().values() and half is not None
    result = model(torch.ones(1, 2).to("xla"))
    found = roles(graph_of([result]), [result], model)
    assert found["weight"][0] is RoleKind.PARAMETER and without is not None
