"""The function of a module that is called, and functions that are refused before MLIR or XLA end the process."""

import pytest
import torch

from torch_xla._engine.export import stablehlo_modules
from torch_xla.stablehlo import stablehlo_function

F = "tensor<2xf32>"
DOUBLE = f"%0 = stablehlo.add %x, %x : {F}"


def function(name: str, body: str, visibility: str = "") -> str:
    return f"func.func {visibility} @{name}(%x: {F}) -> {F} {{\n  {body}\n  return %0 : {F}\n}}\n"


def call_of(name: str) -> str:
    return f"%0 = func.call @{name}(%x) : ({F}) -> {F}"


def test_a_public_function_alone_is_called_by_any_name() -> None:
    x = torch.tensor([1.0, 2.0])
    for text in (
        function("forward", DOUBLE),
        function("inner", DOUBLE, "private") + function("forward", call_of("inner")),
        function("other", call_of("main")) + function("main", DOUBLE),
    ):
        assert stablehlo_function(text)(x)[0].tolist() == [2, 4]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            function("a", DOUBLE) + function("b", DOUBLE),
            "a function `main`, or in a text one public .*; this one has 'a', 'b'",
        ),
        ("module {}", "one public function alone; this one has none"),
        (function("main", call_of("main")), r"the function 'main' \(line 1\) calls itself"),
        (
            function("main", DOUBLE) + function("f", call_of("g"), "private") + function("g", call_of("f"), "private"),
            r"the function 'f' \(line 5\) calls itself",
        ),
        (f"func.func private @main({F}) -> {F}", r"the function 'main' \(line 1\) has no body"),
        (
            function("main", call_of("g")) + f"func.func private @g({F}) -> {F}",
            r"the function 'g' \(line 5\) has no body",
        ),
    ],
)
def test_functions_that_nothing_can_run_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        stablehlo_function(text)


def test_an_artifact_has_the_names_that_it_has() -> None:
    artifact = stablehlo_modules.portable(function("main", DOUBLE)).replace(b"main", b"mine")
    with pytest.raises(ValueError, match="needs a function `main`.*; this one has 'mine'"):
        stablehlo_function(artifact)


def test_a_module_takes_and_returns_tensors_alone() -> None:
    with pytest.raises(ValueError, match=r"takes and returns tensors alone; got !stablehlo.token"):
        stablehlo_function("func.func @main(%x: !stablehlo.token) -> !stablehlo.token { return %x : !stablehlo.token }")


def test_a_function_without_arguments_runs() -> None:
    text = f"func.func @main() -> {F} {{\n  %0 = stablehlo.constant dense<1.5> : {F}\n  return %0 : {F}\n}}"
    (found,) = stablehlo_function(text)()
    assert found.device.type == "xla" and found.tolist() == [1.5, 1.5]
