"""The precision of products: as exact as PyTorch's float32 unless the user asks for speed."""

import pytest
import torch

import torch_xla
import torch_xla.backends
from torch_xla._engine import precision
from torch_xla._engine.metrics import counters


def stablehlo(name: str) -> str:
    torch_xla.backends.set_mat_mul_precision(name)  # type: ignore[arg-type]
    x, image = torch.ones(3, 3, device="xla"), torch.ones(1, 2, 8, 8, device="xla")
    kernel = torch.ones(2, 2, 3, 3, device="xla")
    results = [x @ x, torch.einsum("ij,kj->ik", x, x), torch.nn.functional.conv2d(image, kernel)]
    return torch_xla._XLAC._get_stablehlo(results).decode()


def test_the_default_is_as_exact_as_pytorchs() -> None:
    assert torch_xla.backends.get_mat_mul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == "highest"
    assert stablehlo("highest").count("HIGHEST") == 6
    precision.forget()
    text = stablehlo("highest")
    assert text.count("dot_general") == 2 and text.count("precision = [HIGHEST, HIGHEST]") == 2
    assert text.count("stablehlo.convolution") == 1 and text.count("#stablehlo<precision HIGHEST>") == 2


def test_products_are_compiled_as_they_were_asked_for() -> None:
    assert "HIGHEST" not in stablehlo("high") and "HIGH" in stablehlo("high")
    assert "HIGH" not in stablehlo("default")


def test_another_precision_is_another_program_and_the_first_one_is_kept() -> None:
    def step() -> None:
        (torch.ones(5, 7, device="xla") @ torch.ones(7, 5, device="xla")).cpu()

    torch_xla.backends.set_mat_mul_precision("highest")
    step()
    counters.clear()
    torch_xla.backends.set_mat_mul_precision("default")
    step()
    assert counters.value_of("UncachedCompile") == 1
    torch_xla.backends.set_mat_mul_precision("highest")
    step()
    assert counters.value_of("UncachedCompile") == 1


def test_what_is_no_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="is 'medium'; it must be one of 'default', 'high', 'highest'"):
        torch_xla.backends.set_mat_mul_precision("medium")  # type: ignore[arg-type]
    torch_xla._XLAC._xla_set_mat_mul_precision("high")
    assert torch_xla._XLAC._xla_get_mat_mul_precision() == torch_xla.backends.get_mat_mul_precision() == "high"


def test_a_product_is_no_farther_from_the_truth_than_that_of_the_cpu() -> None:
    a, b = torch.randn(128, 300, device="cpu"), torch.randn(300, 128, device="cpu")
    truth = a.double() @ b.double()
    ours, theirs = (a.to("xla") @ b.to("xla")).cpu(), a @ b
    # The worst of 16,384 errors depends on the numbers and on the order of the sum; their size does not.
    assert (ours - truth).square().mean().sqrt() <= 2 * (theirs - truth).square().mean().sqrt()
