"""How exactly 32-bit floats are multiplied is a choice of the user's, and part of the program."""

import re

import pytest
import torch

from torch_xla._engine import precision
from torch_xla._engine.metrics import counters
from torch_xla._engine.step.pending_text import stablehlo_text
from torch_xla.core.xla_builder import call_jax
from torch_xla.stablehlo import StableHLOExportOptions, exported_program_to_stablehlo

OF_TORCH = {"highest": "highest", "high": "high", "medium": "default"}


def said_of(*results: torch.Tensor) -> set[str]:
    return found_in(stablehlo_text(list(results)))


def found_in(text: str) -> set[str]:
    return set(re.findall(r"(?:precision = \[|#stablehlo<precision )(\w+)", text))


def test_only_a_tpu_rounds_unless_it_is_asked_for() -> None:
    assert precision.asked_for() == ""
    assert {name: precision.on_platform(name) for name in ("cpu", "gpu", "tpu", None)} == {
        "cpu": "highest",
        "gpu": "highest",
        "tpu": "default",
        None: "highest",
    }


@pytest.mark.parametrize("name", precision.NAMES)
def test_a_product_is_lowered_with_it(name: str) -> None:
    precision.choose(name)
    x = torch.ones(2, 3, device="xla")
    text = stablehlo_text([x @ x.mT])
    (said,) = re.findall(r"precision = \[(\w+), (\w+)\]", text)
    assert said == (name.upper(), name.upper())


@pytest.mark.parametrize(("theirs", "ours"), OF_TORCH.items())
def test_pytorchs_setting_counts_until_ours_is_called(theirs: str, ours: str) -> None:
    torch.set_float32_matmul_precision(theirs)
    assert {precision.on_platform(name) for name in ("cpu", "gpu", "tpu")} == {ours}
    x = torch.ones(2, 3, device="xla")
    assert said_of(x @ x.mT) == {ours.upper()}
    precision.choose("high")
    assert {precision.on_platform(name) for name in ("cpu", "gpu", "tpu")} == {"high"}


def test_pytorchs_setting_makes_another_program() -> None:
    def step() -> None:
        (torch.ones(4, 9, device="xla") @ torch.ones(9, 4, device="xla")).cpu()

    step()
    counters.clear()
    torch.set_float32_matmul_precision("medium")
    step()
    step()
    assert counters.value_of("UncachedCompile") == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32])
def test_it_is_not_said_of_other_dtypes(dtype: torch.dtype) -> None:
    precision.choose("highest")
    x = torch.ones(2, 3, device="xla", dtype=dtype)
    results = [x @ x.mT, torch.einsum("ij,kj->ik", x, x)]
    if dtype.is_floating_point:
        image, kernel = x.new_ones(1, 2, 8, 8), x.new_ones(2, 2, 3, 3)
        results.append(torch.nn.functional.conv2d(image, kernel))
    assert said_of(*results) <= {"DEFAULT"}


def test_gradients_and_complex_numbers_have_it_too() -> None:
    x = torch.ones(3, 3, device="xla", requires_grad=True)
    torch.nn.functional.conv1d(x[None] @ x, torch.ones(3, 3, 1, device="xla", requires_grad=True)).sum().backward()
    assert x.grad is not None and said_of(x.grad) == {"HIGHEST"}
    z = torch.ones(2, 2, dtype=torch.complex64, device="xla")
    assert said_of(z @ z) == {"HIGHEST"}


@pytest.mark.parametrize(
    ("platforms", "wide"), [(["cpu"], "HIGHEST"), (["tpu"], "DEFAULT"), (["cpu", "tpu"], "HIGHEST")]
)
def test_an_exported_program_has_that_of_the_platform_it_is_for(platforms: list[str], wide: str) -> None:
    for dtype, expected in ((torch.float32, {wide}), (torch.bfloat16, set[str]())):
        layer = torch.nn.Linear(3, 3, dtype=dtype)
        exported = torch.export.export(layer, (torch.ones(2, 3, dtype=dtype),))
        options = StableHLOExportOptions(platforms=tuple(platforms))
        text = exported_program_to_stablehlo(exported, options).get_stablehlo_text()
        assert "dot_general" in text and found_in(text) - {"DEFAULT"} == expected - {"DEFAULT"}


def test_a_jax_function_has_jaxs_own() -> None:
    x = torch.ones(3, 3, device="xla")
    assert said_of(call_jax(lambda a: a @ a, (x,))) <= {"DEFAULT"}


def test_another_word_is_refused_with_those_that_there_are() -> None:
    precision.choose("high")
    with pytest.raises(ValueError, match="^the precision .* is 'medium'; it must be one of 'default', 'high', 'highe"):
        precision.choose("medium")
    assert precision.asked_for() == "high"
