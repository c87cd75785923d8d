"""Everything that an executable depends on gives it another name on disk, whatever changes alone."""

from dataclasses import fields, replace
from typing import Any

import jax
import numpy as np
import pytest
import torch

from torch_xla._engine.client import target as targets
from torch_xla._engine.client.target import Target
from torch_xla._engine.compile import disk, fingerprint, function, sources
from torch_xla._engine.graph.effect import collective
from torch_xla._engine.graph.graph import Graph, Operation
from torch_xla._engine.graph.plan import Operand, Plan
from torch_xla._engine.graph.spec import Spec, spec_of

SPEC, OTHER = spec_of((2,), (1,), torch.float32), spec_of((2,), (1,), torch.int32)
ARGUMENTS = ((Operand(0),), {})
PLAN = Plan(torch.ops.aten.sin.default, ARGUMENTS, (SPEC,), (), (SPEC,))


def graph(plan: Plan = PLAN, inputs: tuple[Spec, ...] = (SPEC,)) -> Graph:
    """One operation on one input."""
    return Graph(inputs, (Operation(plan, (0,), 0, -1, 1, 0),), (1,))


def name(of: Graph, donated: tuple[int, ...] = (), promoted: tuple[int, ...] = (), numbers: bytes = b"") -> str:
    """What a program is called on disk."""
    return fingerprint.of_program(of, donated, promoted, numbers)


OTHER_PLANS: dict[str, Any] = {
    "op": torch.ops.aten.cos.default,
    "arguments": ((Operand(0),), {"more": 1}),
    "operands": (OTHER,),
    "numbers": (float,),
    "outputs": (OTHER,),
    "structure": (1,),
    "compute_dtype": np.dtype(np.float64),
    "draws": 1,
    "replaces": (0,),
    "effect": collective(((0, 1),)),
}


def test_each_part_of_a_plan_alone_gives_another_name() -> None:
    # What `inside` holds is what the operation does in other words; its name and arguments say which it is.
    assert OTHER_PLANS.keys() == {field.name for field in fields(Plan)} - {"inside"}
    names = {name(graph())}
    for field, other in OTHER_PLANS.items():
        names.add(name(graph(replace(PLAN, **{field: other}))))
    assert len(names) == 1 + len(OTHER_PLANS)
    assert name(graph(replace(PLAN))) == name(graph())


@pytest.mark.parametrize("nameless", ("op", "arguments"))
def test_what_only_this_process_can_name_has_no_name(nameless: str) -> None:
    own: dict[str, Any] = {"op": "jax::f_0 at 0x0", "arguments": ((Operand(0), object()), {})}
    of = graph(replace(PLAN, **{nameless: own[nameless]}))
    assert fingerprint.is_named(graph()) and not fingerprint.is_named(of)
    with pytest.raises(fingerprint.Nameless):
        name(of)


def test_each_part_of_a_program_alone_gives_another_name() -> None:
    others = [
        name(graph(inputs=(OTHER,))),
        name(graph(), donated=(0,)),
        name(graph(), promoted=(0,)),
        name(graph(), numbers=b"12345678"),
    ]
    assert len({name(graph()), *others}) == 5


def environment(target: Target | None = None) -> dict[str, str]:
    """Of one device, unless said otherwise."""
    return fingerprint.environment(target or targets.of_device(jax.devices("cpu")[0]))


CHANGES: dict[str, Any] = {
    "torch": lambda patch: patch.setattr(torch, "__version__", "0"),
    "jax": lambda patch: patch.setattr(jax, "__version__", "0"),
    "jaxlib": lambda patch: patch.setattr(fingerprint, "version", lambda package: "0"),
    "rules": lambda patch: patch.setattr(sources, "digest", lambda: "0"),
    "XLA_FLAGS": lambda patch: patch.setenv("XLA_FLAGS", "--xla_any=1"),
    "LIBTPU_INIT_ARGS": lambda patch: patch.setenv("LIBTPU_INIT_ARGS", "--any=1"),
    "dtypes": lambda patch: patch.setenv("XLA_USE_BF16", "1"),
    "options": lambda patch: patch.setattr(function, "_OPTIONS", {}),
    "processor": lambda patch: patch.setattr(fingerprint, "_processor", lambda: "0"),
    "cores": lambda patch: patch.setattr("os.sched_getaffinity", lambda process: range(1000)),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_each_part_of_the_environment_alone_is_another_file_and_is_named(
    changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = environment()
    CHANGES[changed](monkeypatch)
    after = environment()
    assert {part for part in before if before[part] != after[part]} == {changed}
    assert disk._name("program", before) != disk._name("program", after)


def test_precision_in_a_block_counts() -> None:
    before = environment()
    with jax.default_matmul_precision("highest"):
        after = environment()
    assert {part for part in before if before[part] != after[part]} == {"matmul precision"}


def test_each_part_of_a_target_alone_is_another_file_and_is_named() -> None:
    one = targets.of_device(jax.devices("cpu")[0])
    before = environment(one)
    mesh = jax.sharding.Mesh(np.array(one.devices), ("replicas",))
    others = {
        "device": replace(one, kind="another"),
        "devices": replace(one, processes=(0, 1)),
        "mesh": replace(one, mesh=mesh),
    }
    for part, other in others.items():
        after = environment(other)
        assert {each for each in before if before[each] != after[each]} == {part}
    along = environment(replace(one, mesh=mesh, axis="replicas"))
    assert along["mesh"] not in ("", environment(others["mesh"])["mesh"])
    # The runtime is asked of the client, and the platform says what else there is.
    assert set(before) == {*CHANGES, "matmul precision", "device", "devices", "mesh", "runtime", "platform"}
