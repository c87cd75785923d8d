"""StableHLO that comes in."""

import jax
import numpy as np
import pytest
from jax.extend.mlir.dialects import stablehlo

from torch_xla._engine.export import stablehlo_modules, stablehlo_versions

TEXT = """
func.func @main(%x: tensor<2x3xf32>, %n: tensor<ui8>) -> tensor<2x3xf32> {
  %y = stablehlo.add %x, %x : tensor<2x3xf32>
  return %y : tensor<2x3xf32>
}"""


def test_every_form_becomes_the_same_artifact() -> None:
    artifact = stablehlo_modules.portable(TEXT)
    assert stablehlo_modules.portable(artifact) == artifact
    assert stablehlo_versions.version_of(artifact) == stablehlo.get_current_version()
    again = stablehlo_modules.portable(stablehlo_modules.text_of(artifact, False))
    assert "stablehlo.add" in stablehlo_modules.text_of(again, True)
    lowered = jax.jit(lambda x: x * 2).lower(jax.ShapeDtypeStruct((4,), np.float32))
    from_jax = stablehlo_modules.portable(str(lowered.compiler_ir("stablehlo")))
    assert "sdy" not in stablehlo_modules.text_of(from_jax, False)


def test_what_is_said_of_dividing_a_call_is_left_out() -> None:
    exported = jax.export.export(jax.jit(jax.numpy.linalg.inv))(jax.ShapeDtypeStruct((2, 3, 3), np.float32))
    kept = stablehlo_modules.without_shardings(bytes(exported.mlir_module_serialized))
    text = stablehlo_modules.text_of(kept, False)
    assert "sdy" not in text and "lapack" in text and stablehlo_modules.without_shardings(kept) is kept


def test_a_module_is_called_as_jax_calls_what_it_exported() -> None:
    exported = stablehlo_modules.exported(TEXT)
    assert [(each.shape, each.dtype.name) for each in exported.in_avals] == [((2, 3), "float32"), ((), "uint8")]
    found = jax.tree.leaves(exported.call(np.ones((2, 3), np.float32), np.uint8(1)))
    assert found[0].tolist() == [[2] * 3] * 2
    assert exported.fun_name.startswith("stablehlo_") and exported.fun_name == stablehlo_modules.exported(TEXT).fun_name
    assert exported.fun_name != stablehlo_modules.exported(TEXT.replace("add", "multiply")).fun_name


@pytest.mark.parametrize(
    ("module", "error", "words"),
    [
        ("nothing", ValueError, "this is no module of StableHLO"),
        (b"nothing", ValueError, "this is no module of StableHLO"),
        ("module {}", ValueError, "needs a function `main`, .*; this one has none"),
        (TEXT.replace("2x3", "?x3"), ValueError, r"has static shapes; got tensor<\?x3xf32>"),
        (TEXT.replace("tensor<ui8>", "tensor<i4>"), TypeError, "a tensor of i4 has no dtype in PyTorch; known are i1"),
    ],
)
def test_what_is_no_such_module_is_refused(module: str | bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        stablehlo_modules.exported(module)
