"""Dtypes of PyTorch and of JAX are paired once, both ways; what the device makes of them follows from two settings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_xla
from torch_xla._engine import dtypes
from torch_xla.interop import call_jax, from_jax


@pytest.mark.parametrize("dtype", [d for d in dtypes.TO_JAX if d is not torch.complex32], ids=str)
def test_a_pair_means_the_same_numbers(dtype: torch.dtype) -> None:
    theirs = dtypes.to_jax(dtype)
    assert dtypes.to_torch(theirs) is dtype and theirs.itemsize == dtype.itemsize
    # The bits of some numbers that every dtype has.
    ours = torch.tensor([1, 2, 0.5]).to(dtype)
    numbers = np.array([1, 2, 0.5]).astype(theirs)
    assert ours.view(torch.uint8).numpy().tobytes() == numbers.tobytes()


def test_the_names_are_those_that_xla_prints() -> None:
    assert dtypes.SHORT_NAMES.keys() == dtypes.TO_JAX.keys()
    for dtype, name in dtypes.SHORT_NAMES.items() - {(torch.complex32, "c32")}:  # which XLA does not have
        with jax.enable_x64(True):
            text = jax.jit(lambda x: x).lower(jax.ShapeDtypeStruct((3,), dtypes.to_jax(dtype))).as_text("hlo")
        assert f" {name}[3]" in text


def test_a_dtype_of_pytorch_alone_is_named() -> None:
    with pytest.raises(TypeError, match=r"^torch.qint8 has no counterpart on an 'xla' device. Convert .* torch.bool, "):
        dtypes.to_jax(torch.qint8)


def test_an_array_that_cannot_be_a_tensor_is_refused_with_its_dtype() -> None:
    x = torch.ones(2, device="xla")
    with pytest.raises(TypeError, match=r"^an array of int4 cannot be a tensor. Convert it .* to one of bool, uint8"):
        from_jax(jnp.zeros(2, jnp.int4))
    with pytest.raises(TypeError, match="^an array of int4 cannot be a tensor"):
        call_jax(lambda x: x.astype(jnp.int4), x)
    with pytest.raises(TypeError, match=r"^an array of key<fry> cannot .*jax.random.key_data takes keys"):
        from_jax(jax.random.key(0))
    torch_xla.sync()
    assert x.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("setting", "mode", "single", "double"),
    [
        ("XLA_USE_BF16", "bf16", torch.bfloat16, torch.bfloat16),
        ("XLA_DOWNCAST_BF16", "downcast", torch.bfloat16, torch.float32),
        (None, "", torch.float32, torch.float64),
    ],
    ids=["bf16", "downcast", "neither"],
)
def test_only_floats_of_32_and_64_bits_live_otherwise_on_the_device(
    setting: str | None, mode: str, single: torch.dtype, double: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if setting is not None:
        monkeypatch.setenv(setting, "1")
    assert dtypes.mode() == mode
    changed = {torch.float32: single, torch.float64: double}
    assert {each: dtypes.on_device(each) for each in dtypes.TO_JAX} == {each: each for each in dtypes.TO_JAX} | changed
