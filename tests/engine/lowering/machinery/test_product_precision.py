"""The products of a rule have the precision in force on the platform, if their operands are float32."""

import re
from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from torch_xla._engine import precision
from torch_xla._engine.lowering.machinery.product_precision import exported_for, precision_of
from torch_xla._engine.lowering.machinery.replica_axis import lowering_for
from torch_xla._engine.runtime import device_assignment as targets
from torch_xla._engine.runtime import platform


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run each test as in a process that has chosen no precision, here or in PyTorch."""
    precision.forget()
    monkeypatch.setattr(precision, "product_precision", lambda *of_torch: "none")
    yield
    precision.forget()


def said(*dtypes: str) -> set[str]:
    def product(*arrays: jax.Array) -> jax.Array:
        with precision_of(arrays):
            return arrays[0] @ arrays[-1]

    with jax.enable_x64(True):
        arrays = [jnp.ones((2, 2), dtype) for dtype in dtypes]
        text = jax.jit(product).trace(*arrays).lower(lowering_platforms=("tpu",)).as_text()
    return set(re.findall(r"precision = \[(\w+)", text)) or {"DEFAULT"}


def on(name: str) -> targets.Target:
    return replace(targets.of_device(platform.local_devices()[0]), platform=name)


@pytest.mark.parametrize(("name", "asked", "expected"), [
    ("tpu", "", "DEFAULT"), ("tpu", "highest", "HIGHEST"), ("tpu", "high", "HIGH"),
    ("gpu", "", "HIGHEST"), ("cpu", "", "HIGHEST"), ("gpu", "default", "DEFAULT"),
])  # fmt: skip
def test_products_of_float32(name: str, asked: str, expected: str) -> None:
    if asked:
        precision.choose(asked)
    with lowering_for(on(name)):
        assert said("float32") == said("complex64") == said("bfloat16", "float32") == {expected}
    with exported_for(["cuda" if name == "gpu" else name]):
        assert said("float32") == {expected}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int32", "complex128", "float8_e4m3fn"])
def test_products_of_other_dtypes_have_none(dtype: str) -> None:
    precision.choose("highest")
    with lowering_for(on("tpu")):
        assert said(dtype) == {"DEFAULT"}
        with jax.default_matmul_precision("highest"):  # of something around it
            assert said(dtype) == {"DEFAULT"}


def test_numbers_and_names_among_the_operands_have_no_dtype() -> None:
    with precision_of([3, "mean", None]):
        assert jax.config.jax_default_matmul_precision is None  # type: ignore[attr-defined]


def test_a_program_for_several_platforms_has_the_precision_that_suits_all() -> None:
    with exported_for(["cpu", "tpu"]):
        assert said("float32") == {"HIGHEST"}
