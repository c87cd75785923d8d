"""A key's fields: each, changed alone, is another key, another file on disk and another line of an explanation."""

from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import torch

import torch_xla.debug
from torch_xla._engine.compile import program_cache, settings_in_force
from torch_xla._engine.compile.disk import disk_cache
from torch_xla._engine.compile.executable_key import Key, key_of
from torch_xla._engine.compile.settings_in_force import Settings
from torch_xla._engine.diagnostics.recompiles.differences import Kind, Known, differences
from torch_xla._engine.ir.call_plan import Number, Operand, Plan
from torch_xla._engine.ir.graph import Graph, Operation
from torch_xla._engine.ir.sharding import Sharding
from torch_xla._engine.ir.value_spec import sharded, spec_of
from torch_xla._engine.metrics import counters
from torch_xla._engine.metrics.events import Cause
from torch_xla._engine.runtime import device_assignment as targets

SPEC = spec_of((2,), (1,), torch.float32)
LINE = ("train.py", 1, "step")
PLAN = Plan(torch.ops.aten.add.Scalar, ((Operand(0), Number(0)), {}), (SPEC,), (float,), (SPEC,))
OTHER_PLAN = replace(PLAN, op=torch.ops.aten.sub.Scalar)
ONE = targets.of_device(jax.devices("cpu")[0])


def graph(plan: Plan = PLAN, spec: Any = SPEC) -> Graph:
    """One operation on one input and one number."""
    return Graph((spec,), (Operation(plan, (0,), 0, -1, 1, 0),), (1,))


def packed(number: float) -> bytes:
    return np.float64(number).tobytes()


KEY = key_of(graph(), (), ONE).of_numbers((), packed(1.0))


@dataclass
class Change:
    """A change of one field: its new value, and what an explanation says of it."""

    value: Any
    text: str
    kind: Kind
    numbers: tuple[float, ...] = (1.0,)
    names: int = 1  # how many other names on disk there are: that of the program, or of its environment
    graph: Graph = graph()


CHANGES = {
    "code": Change(graph(OTHER_PLAN).code, "sub instead of add", Kind.OPERATIONS, graph=graph(OTHER_PLAN)),
    "donated": Change((0,), "the memory of the input of add can be reused", Kind.DONATION),
    "results": Change((Sharding(((0,),)),), "results are divided among the devices otherwise", Kind.RESULTS),
    "target": Change(replace(ONE, kind="another"), "device cpu:0 → cpu:0", Kind.DEVICE),
    "arguments": Change((0,), "from now on it is an argument", Kind.NUMBER, (2.0,)),
    "numbers": Change(packed(2.0), "constant 1.0 → 2.0 in add", Kind.NUMBER, (2.0,)),
    "settings": Change(replace(KEY.settings, precision="high"), "precision '' → 'high'", Kind.SETTING),
    "installation": Change(replace(KEY.installation, jax="0"), f"jax '{KEY.installation.jax}'", Kind.SETTING),
}


def known(key: Key, of: Graph, numbers: tuple[float, ...]) -> Known:
    """Return the data that explanations keep of a program with this key."""
    compilation: Any = SimpleNamespace(
        program=SimpleNamespace(key=replace(key, arguments=(), numbers=b""), graph=of, arguments=key.arguments),
        numbers=numbers,
        lines=(LINE,),
        names=("",),
        frames=(LINE,),
        cause=Cause.SYNC,
    )
    return Known.of(compilation)


def test_every_field_has_a_change() -> None:
    assert list(CHANGES) == [field.name for field in fields(Key)]
    equal = key_of(graph(replace(PLAN)), (), ONE).of_numbers((), packed(1.0))
    assert disk_cache._name(equal) == disk_cache._name(KEY) and equal.digest == KEY.digest


@pytest.mark.parametrize("field", CHANGES)
def test_each_field_alone_is_another_key_another_file_and_another_explanation(field: str) -> None:
    change = CHANGES[field]
    other = replace(KEY, **{field: change.value})
    assert other != KEY
    assert disk_cache._name(other) != disk_cache._name(KEY)
    found = differences(known(KEY, graph(), (1.0,)), known(other, change.graph, change.numbers))
    assert [each.kind for each in found] == [change.kind] and change.text in found[0].text, found
    # Ranks compare what was recorded; what is installed where they run is theirs.
    assert (other.digest == KEY.digest) == (field == "installation")


def test_an_input_that_is_divided_otherwise_is_another_key_and_is_named() -> None:
    divided = graph(spec=sharded(SPEC, Sharding(((0,),))))
    other = key_of(divided, (), ONE)
    assert disk_cache._name(other) != disk_cache._name(key_of(graph(), (), ONE))
    (found,) = differences(known(KEY, graph(), (1.0,)), known(other, divided, (1.0,)))
    assert (found.kind, found.text) == (
        Kind.INPUT,
        "division of the input of add among the devices none → [0]",
    )


def test_each_setting_alone_is_another_environment_and_is_named() -> None:
    settings = Settings("", "highest", "", ())
    others = {
        "dtypes": replace(settings, dtypes="bf16"),
        "precision": replace(settings, precision="default"),
        "options": replace(settings, options="xla_any=1"),
        "jax_any": replace(settings, jax=(("jax_any", True),)),
    }
    before = replace(KEY, settings=settings).environment
    for name, other in others.items():
        after = replace(KEY, settings=other).environment
        assert {each for each in before.keys() | after if before.get(each) != after.get(each)} == {name}
    assert set(others) - {"jax_any"} | {"jax"} == {field.name for field in fields(Settings)}


def test_settings_are_read_in_this_thread() -> None:
    before = settings_in_force.now()
    with jax.default_matmul_precision("high"), jax.numpy_dtype_promotion("strict"):
        after = settings_in_force.now()
    changed = {name for name, text in after.texts().items() if before.texts().get(name) != text}
    assert changed == {"jax_default_matmul_precision", "jax_numpy_dtype_promotion"}
    assert settings_in_force.now() == before
    with jax.enable_x64(True):  # the engine decides about it itself
        assert settings_in_force.now() == before


def test_each_part_of_a_target_alone_is_another_environment_and_is_named() -> None:
    mesh = jax.sharding.Mesh(np.array(ONE.devices), ("replicas",))
    others = {
        "device": replace(ONE, kind="another"),
        "devices": replace(ONE, processes=(0, 1)),
        "mesh": replace(ONE, mesh=mesh),
        "platform": replace(ONE, platform="another"),
    }
    before = KEY.environment
    for part, target in others.items():
        after = replace(KEY, target=target).environment
        assert {each for each in before if before[each] != after[each]} == {part}
    along = replace(KEY, target=replace(ONE, mesh=mesh, axis="replicas")).environment["mesh"]
    assert along not in ("", replace(KEY, target=others["mesh"]).environment["mesh"])


def test_results_of_divided_programs_are_as_the_inputs_that_they_replace() -> None:
    divided = sharded(SPEC, Sharding(((0,),)))
    spread = replace(ONE, mesh=jax.sharding.Mesh(np.array(ONE.devices), ("0",)))
    assert key_of(graph(spec=divided), (0,), spread).results == (divided.sharding,)
    assert key_of(graph(spec=divided), (), spread).results == (divided.sharding,)
    assert key_of(graph(), (0,), spread).results == (None,)
    assert key_of(graph(), (0,), ONE).results == ()


def test_a_setting_of_jax_is_another_program_of_the_same_step() -> None:
    x = torch.arange(131.0).to("xla")  # no other test's, whose program would be found

    def compiled() -> int:
        before = counters.value_of("UncachedCompile") or 0
        (x * 3 + 1).tolist()
        return (counters.value_of("UncachedCompile") or 0) - before

    compiled()
    assert compiled() == 0
    with jax.default_matmul_precision("high"):
        assert compiled() == 1 and compiled() == 0
    assert compiled() == 0
    assert program_cache.size() >= 2
    assert "jax_default_matmul_precision None → 'high'" in torch_xla.debug.explain_recompiles()
