"""Portable artifacts in the oldest version of StableHLO that holds the program, or in one by name."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.extend.mlir.dialects import stablehlo

from torch_xla._engine.export import stablehlo_modules, stablehlo_versions

VECTOR = jax.ShapeDtypeStruct((4,), np.float32)
# The oldest version of each: composites came with 0.19, the tangent with 1.4.
PROGRAMS: dict[str, tuple[Callable[..., Any], str]] = {
    "add": (lambda x: x + 1, "0.9.0"),
    "erf": (jax.scipy.special.erf, "0.19.0"),
    "tan": (jax.numpy.tan, "1.4.0"),
}


def exported(name: str) -> bytes:
    return bytes(jax.export.export(jax.jit(PROGRAMS[name][0]))(VECTOR).mlir_module_serialized)


def before(version: str) -> str:
    major, minor, _ = stablehlo_versions._numbers(version)
    return f"{major}.{minor - 1}.0" if minor else "0.20.0"


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_oldest_version_that_holds_a_program_is_written(name: str) -> None:
    artifact, oldest = exported(name), PROGRAMS[name][1]
    found = stablehlo_versions.rewritten(artifact)
    assert stablehlo_versions.version_of(found) == oldest
    assert stablehlo_modules.text_of(found, False) == stablehlo_modules.text_of(artifact, False)
    assert stablehlo_versions.rewritten(found) == stablehlo_versions.rewritten(found, oldest)
    if oldest != stablehlo.get_minimum_version():
        with pytest.raises(ValueError, match=f"cannot hold the operation .* holds the program is {oldest}"):
            stablehlo_versions.rewritten(artifact, before(oldest))


@pytest.mark.parametrize("version", ["1.13.0", "1.4.0", stablehlo.get_current_version()])
def test_a_version_may_be_named(version: str) -> None:
    assert stablehlo_versions.version_of(stablehlo_versions.rewritten(exported("tan"), version)) == version


@pytest.mark.parametrize("version", ["newest", "1.13", "0.8.0", "99.0.0", ""])
def test_versions_that_there_are_not_are_refused(version: str) -> None:
    with pytest.raises(ValueError, match=r"stablehlo_version is .*; expected a version from 0\.9\.0 to"):
        stablehlo_versions.rewritten(exported("add"), version)
    assert stablehlo_versions.version_of(b"other") == ""


def test_composites_become_calls(capfd: pytest.CaptureFixture[str]) -> None:
    artifact = exported("erf")
    called = stablehlo_versions.with_calls(artifact)
    text = stablehlo_modules.text_of(called, False)
    assert "stablehlo.composite" not in text and "call @chlo.erf.impl" in text
    assert stablehlo_versions.version_of(stablehlo_versions.rewritten(called)) == "0.9.0"
    plain = exported("add")
    assert stablehlo_versions.with_calls(plain) is plain
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    results = [jax.tree.leaves(stablehlo_modules.exported(each).call(x))[0] for each in (artifact, called)]
    np.testing.assert_allclose(results[0], results[1], atol=1e-6)
    assert capfd.readouterr().err == ""  # MLIR prints nothing of the versions that were tried


def test_functions_of_libraries_are_named_once() -> None:
    def inverted(x: jax.Array) -> jax.Array:
        return jax.numpy.linalg.inv(x) + jax.numpy.linalg.inv(x + 1)

    matrix = jax.ShapeDtypeStruct((3, 3), np.float32)
    artifact = bytes(jax.export.export(jax.jit(inverted), platforms=["cpu"])(matrix).mlir_module_serialized)
    assert sorted(stablehlo_versions.libraries_called(artifact)) == ["lapack_sgetrf_ffi", "lapack_strsm_ffi"]
    assert stablehlo_versions.libraries_called(exported("erf")) == []
