"""JAX's private names behave as expected: executables through bytes, settings, sizes."""

import pickle
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.topologies import needs_tpu_compiler
from torch_xla._engine.compat.names import jax as private
from torch_xla._engine.compat.names import jax_starters
from torch_xla._engine.runtime import device_memory, topologies

DEVICE = jax.devices("cpu")[0]
PLACED = jax.sharding.SingleDeviceSharding(DEVICE)


def compiled(function: Callable[..., Any], *arguments: Any, **options: Any) -> jax.stages.Compiled:
    described = [jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=PLACED) for each in arguments]
    return jax.jit(function, keep_unused=True, **options).trace(*described).lower().compile()


def again(executable: jax.stages.Compiled, donated: tuple[int, ...] = ()) -> jax.stages.Compiled:
    found = private.serialised(executable)
    weak = set(found.weak)
    inputs = [
        jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=PLACED) for each in jax.tree.leaves(executable.args_info)
    ]
    outputs = [
        jax.ShapeDtypeStruct(each.shape, each.dtype, weak_type=place in weak, sharding=PLACED)
        for place, each in enumerate(jax.tree.leaves(executable.out_info))
    ]
    return private.compiled_from(private.load(found.data, [DEVICE]), found.name, [DEVICE], inputs, outputs, donated)


def instructions(executable: jax.stages.Compiled) -> list[str]:
    """Return the instructions of the HLO without their source metadata, which XLA keeps differently."""
    return [re.sub(r", metadata=\{.*", "", line) for line in str(executable.as_text()).splitlines() if " = " in line]


def test_it_gives_what_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("something was pickled or unpickled")

    x, y = jnp.arange(6.0).reshape(2, 3), jnp.ones((3, 2), jnp.bfloat16)
    first = compiled(lambda x, y: (x @ y, (y > 0).sum(), jnp.asarray(3.0), x[:0]), x, y)
    for name in ("loads", "load", "Unpickler", "dumps", "dump", "Pickler"):
        monkeypatch.setattr(pickle, name, refuse)
    second = again(first)
    for ours, theirs in zip(second(x, y), first(x, y), strict=True):
        assert ours.aval == theirs.aval and ours.sharding == theirs.sharding and ours.committed == theirs.committed
        np.testing.assert_array_equal(ours, theirs)
    assert second.in_avals == first.in_avals and second.out_tree == first.out_tree
    assert instructions(second) == instructions(first) != []
    assert second.memory_analysis().temp_size_in_bytes == first.memory_analysis().temp_size_in_bytes
    assert second.input_formats == first.input_formats and second.output_formats == first.output_formats


def test_it_takes_what_numpy_holds_and_refuses_another_dtype() -> None:
    x = jnp.arange(3.0)
    second = again(compiled(lambda x: (x * 2,), x))
    assert second(np.arange(3, dtype=np.float32))[0].tolist() == [0.0, 2.0, 4.0]
    with pytest.raises(TypeError):
        second(jnp.arange(3))


def test_it_gives_inputs_away_and_starts_directly() -> None:
    x = jnp.arange(3.0)
    second = again(compiled(lambda x: (x + 1,), x, donate_argnums=0), (0,))
    assert [info.donated for info in jax.tree.leaves(second.args_info)] == [True]
    start = jax_starters.starter(second)
    assert start is not None
    ((result,),) = start([[x]])
    assert x.is_deleted() and result.tolist() == [1.0, 2.0, 3.0]


def test_what_holds_objects_of_this_process_is_refused() -> None:
    x = jnp.arange(3.0)
    describes = jax.ShapeDtypeStruct((3,), x.dtype)
    calls_python = compiled(lambda x: (jax.pure_callback(lambda x: x, describes, x),), x)
    prints = compiled(lambda x: (jax.debug.print("{}", x), x)[1:], x)
    for executable in (calls_python, prints):
        with pytest.raises(ValueError, match="objects of this process"):
            private.serialised(executable)


def test_an_interrupt_is_not_taken_for_an_answer() -> None:
    class Interrupted:
        def get_parameter_layouts(self) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        private.compiled_from(Interrupted(), "name", [DEVICE], [], [], [])


def test_numbers_are_put_in_their_own_dtype_whatever_jax_is_set_to() -> None:
    for dtype in (np.int64, np.float64, np.uint64, np.int8):
        host = np.array([1, 2, 3], dtype)
        array = private.put(host, DEVICE)
        assert array.dtype == dtype and array.committed and np.asarray(array).tolist() == [1, 2, 3]


def test_elsewhere_than_on_a_cpu_memory_of_the_host_is_read_before_a_transfer_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    monkeypatch.setattr(private, "_on_one", lambda device: None)
    monkeypatch.setattr(private._jax, "batched_device_put", lambda *arguments: asked.append(arguments[-2]))
    for platform in ("cpu", "gpu", "tpu"):
        private.put(np.ones(3), SimpleNamespace(platform=platform))  # type: ignore[arg-type]
    kinds = private._jax.HostBufferSemantics
    assert asked == [kinds.ZERO_COPY, *[kinds.IMMUTABLE_ONLY_DURING_CALL] * 2]


def test_a_number_that_became_an_argument_promotes_as_a_python_number() -> None:
    def added(scalar: Any) -> Any:
        return jnp.ones(2, jnp.bfloat16) + private.weakly_typed(scalar, np.dtype(np.float32))

    assert jax.eval_shape(added, jax.ShapeDtypeStruct((), np.float32)).dtype == jnp.bfloat16
    assert (jnp.ones(2, jnp.bfloat16) + jnp.float32(1)).dtype == jnp.float32


def test_settings_are_those_that_have_a_value() -> None:
    names = [name for name, _ in private.trace_settings(private.trace_context())]
    assert "jax_enable_x64" not in names and "axis_env_state" not in names
    with jax.default_matmul_precision("bfloat16"):
        assert ("jax_default_matmul_precision", "bfloat16") in private.trace_settings(private.trace_context())
    assert "jax_default_matmul_precision" not in names


def test_callbacks_that_were_interrupted_are_told_from_those_that_failed() -> None:
    assert private.is_interrupt(RuntimeError("INTERNAL: CpuCallback error\n  File ...\nKeyboardInterrupt: "))
    assert not private.is_interrupt(RuntimeError("INTERNAL: KeyboardInterrupt was not it\nValueError: no"))
    assert not private.is_interrupt(RuntimeError(""))


@pytest.mark.slow
def test_programs_are_compiled_for_more_devices_than_a_process_can_have() -> None:
    devices = private.virtual_cpu_devices(2_050)
    mesh = jax.sharding.Mesh(np.array(devices), ("all",))
    divided = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("all"))
    x = jax.ShapeDtypeStruct((2_050, 3), np.float32, sharding=divided)
    compiled = jax.jit(lambda x: x.sum(0)).lower(x).compile()
    assert re.search("all-reduce.*=2050", compiled.as_text())


def test_virtual_devices_are_of_a_client_of_their_own() -> None:
    made = private.virtual_cpu_devices(3)
    assert [device.id for device in made] == [0, 1, 2] and DEVICE not in made
    assert np.asarray(jax.device_put(np.ones(2), made[2])).tolist() == [1, 1]


def test_sizes_with_symbols_get_numbers() -> None:
    b, size = jax.export.symbolic_shape("b, 2*b + 1")
    assert private.size_for(size, {"b": 3}) == 7 and private.symbols_of(size) == ("b",) and private.symbols_of(5) == ()
    assert private.size_for(b, {"b": 4}) == 4


def test_hlo_becomes_stablehlo_or_is_refused() -> None:
    proto = jax.jit(jnp.sin).lower(jnp.ones(2)).compiler_ir("hlo").as_serialized_hlo_module_proto()
    assert private.stablehlo_of(proto).startswith(b"ML\xefR")
    with pytest.raises(ValueError, match="^this is no serialised HLO module: "):
        private.stablehlo_of(b"nonsense")


@pytest.mark.slow
def test_traces_are_forgotten_beyond_a_number_and_what_is_compiled_is_not() -> None:
    runs: list[int] = []

    @jax.jit
    def program(x: Any) -> Any:
        runs.append(1)
        return x + 1

    program(jnp.ones(3))
    private.drop_traces(1 << 30)
    program(jnp.ones(3))
    private.drop_traces(0)
    assert program(jnp.ones(3)).tolist() == [2, 2, 2] and len(runs) == 1
    assert program(jnp.ones(4)).tolist() == [2] * 4 and len(runs) == 2


def test_a_device_of_this_process_runs() -> None:
    stranger: Any = SimpleNamespace()
    assert not private.is_compile_only(jax.devices("cpu")[0]) and not private.is_compile_only(stranger)


@needs_tpu_compiler
def test_a_device_of_a_topology_only_compiles_and_has_no_memory_in_use() -> None:
    device = topologies.devices_of(topologies.named("v5e:2x2"))[3]
    assert private.is_compile_only(device) and device_memory.usage(device) == device_memory.Usage(0, 0, 0)
    device_memory.forget_peak(device)


def test_an_interrupt_of_a_walk_is_an_interrupt() -> None:
    module = jax.jit(lambda x: x + 1).lower(1.0).compiler_ir("stablehlo")
    seen = []

    def look(operation: Any) -> Any:
        seen.append(operation.name)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        private.walk(module, look)
    assert len(seen) == 1
    with pytest.raises(RuntimeError, match="unhashable"):
        private.walk(module, lambda operation: {[]})  # noqa: B018
