"""Constants of modules that come in: weights behind the module, and constants of other dialects."""

import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from torch_xla._engine.export import stablehlo_modules
from torch_xla.stablehlo import stablehlo_function

# As torch-mlir writes a linear layer: weights behind the module, numbers of `arith`, unused ones among them.
TEXT = """module {
  func.func @main(%arg0: tensor<2x3xf32>) -> tensor<2x2xf32> {
    %0 = stablehlo.constant dense_resource<torch_tensor_2_3_torch.float32> : tensor<2x3xf32>
    %cst = arith.constant dense<[0.5, -0.5]> : tensor<2xf32>
    %c1 = arith.constant 1 : i64
    %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %2 = stablehlo.dot_general %arg0, %1, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32>
    %3 = chlo.broadcast_add %2, %cst : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
    %4 = chlo.erf %3 : tensor<2x2xf32> -> tensor<2x2xf32>
    return %4 : tensor<2x2xf32>
  }
}

{-#
  dialect_resources: {
    builtin: {
      torch_tensor_2_3_torch.float32: "WEIGHT"
    }
  }
#-}
"""  # noqa: E501
WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3) / 10


def blob(array: np.ndarray) -> str:
    return "0x" + (struct.pack("<I", array.itemsize) + array.tobytes()).hex().upper()


def module_of(kind: str, data: str, name: str = "w") -> str:
    dialect = "stablehlo" if "ui" in kind else "arith"  # `arith` has no unsigned integers
    function = f"""func.func @main(%x: tensor<1xf32>) -> {kind} {{
  %0 = {dialect}.constant dense_resource<{name}> : {kind}
  return %0 : {kind}
}}"""
    return function + f'\n{{-#\n  dialect_resources: {{\n    builtin: {{\n      {name}: "{data}"\n    }}\n  }}\n#-}}'


def test_a_linear_layer_of_torch_mlir_is_called() -> None:
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    expected = torch.erf(torch.nn.functional.linear(x, torch.from_numpy(WEIGHT), torch.tensor([0.5, -0.5])))
    call = stablehlo_function(TEXT.replace("WEIGHT", blob(WEIGHT)))
    torch.testing.assert_close(call(x)[0].cpu(), expected)
    text = stablehlo_modules.text_of(stablehlo_modules.portable(TEXT.replace("WEIGHT", blob(WEIGHT))), False)
    assert "arith" not in text and "dense_resource" not in text


@pytest.mark.parametrize(
    ("element", "values"),
    [
        ("f32", np.array([1.5, -2.0, 3.0], np.float32)),
        ("f64", np.array([1e300, -2.0, 3.0])),
        ("f16", np.array([1.5, -2.0, 3.0], np.float16)),
        ("bf16", np.array([1.5, -2.0, 3.0], ml_dtypes.bfloat16)),
        ("i64", np.array([2**40, -1, 0])),
        ("i32", np.array([7, -1, 0], np.int32)),
        ("i8", np.array([7, -1, 0], np.int8)),
        ("ui8", np.array([255, 1, 0], np.uint8)),
        ("i1", np.array([True, False, True])),
        ("complex<f32>", np.array([1 + 2j, -1j, 0], np.complex64)),
        ("f8E4M3FNUZ", np.array([1.5, -2.0, 3.0], ml_dtypes.float8_e4m3fnuz)),
        ("f8E5M2FNUZ", np.array([1.5, -2.0, 3.0], ml_dtypes.float8_e5m2fnuz)),
        ("f8E8M0FNU", np.array([1.0, 2.0, 4.0], ml_dtypes.float8_e8m0fnu)),
    ],
)
def test_weights_of_each_dtype_keep_their_bits(element: str, values: np.ndarray) -> None:
    for array in (values, values[:1], values[:0], np.tile(values, 5)):
        (found,) = stablehlo_function(module_of(f"tensor<{len(array)}x{element}>", blob(array)))(torch.ones(1))
        assert found.cpu().view(torch.uint8 if element == "i1" else found.dtype).tolist() == array.tolist()


@pytest.mark.parametrize("dialect", ["arith", "stablehlo"])
def test_complex_constants_come_in(dialect: str) -> None:
    kind = "tensor<2xcomplex<f64>>"
    text = (
        f"func.func @main(%x: tensor<1xf32>) -> {kind} {{\n"
        f"  %0 = {dialect}.constant dense<[(1.0, 2.0), (3.0, -4.0)]> : {kind}\n  return %0 : {kind}\n}}"
    )
    assert stablehlo_function(text)(torch.ones(1))[0].tolist() == [1 + 2j, 3 - 4j]


def test_a_name_may_be_quoted() -> None:
    text = module_of("tensor<1xf32>", blob(WEIGHT[0, 1:2]), '"a weight/1"')
    assert round(stablehlo_function(text)(torch.ones(1))[0].item(), 4) == 0.1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (module_of("tensor<2xf32>", "0x040000000000803F"), r"the weight 'w' \(line 2\), .* takes 8 bytes and has 4"),
        (module_of("tensor<2xf32>", "0x").partition("{-#")[0], r"the weight 'w' \(line 2\), .* has no data"),
        (module_of("tensor<2xi4>", "0x010000000102"), r"the weight 'w' \(line 2\) is of i4; known are i1"),
        (
            TEXT.replace("chlo.erf %3 : tensor<2x2xf32> -> tensor<2x2xf32>", "math.erf %3 : tensor<2x2xf32>"),
            r"holds no 'math.erf' \(line 9\)",
        ),
        (
            "func.func @main() -> tensor<1xi64> {\n  %0 = arith.constant 1 : i64\n"
            "  %1 = tensor.from_elements %0 : tensor<1xi64>\n  return %1 : tensor<1xi64>\n}",
            r"holds no 'arith.constant' \(line 2\)",
        ),
        (
            "module {\n  ml_program.global private mutable @global_seed(dense<0> : tensor<i64>) : tensor<i64>\n}",
            r'(?s)no module of StableHLO.*:2:.*ml_program.global',
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_is_named_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        stablehlo_function(text.replace("WEIGHT", blob(WEIGHT)))


def test_an_operation_that_stablehlo_does_not_hold_is_named_with_its_line() -> None:
    text: Any = (
        "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n"
        '  %0 = "stablehlo.add"(%x, %x) {value = dense_resource<other> : tensor<1xf32>} : '
        "(tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>\n  return %0 : tensor<2xf32>\n}"
    )
    with pytest.raises(ValueError, match=r"cannot hold the operation 'stablehlo.add' \(line 2\)"):
        stablehlo_function(text)
