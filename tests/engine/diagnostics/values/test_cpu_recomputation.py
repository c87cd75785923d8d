"""How a result of the device is compared with that of PyTorch on the CPU."""

import torch

from torch_xla._engine.diagnostics.values.cpu_recomputation import Mismatch, StepComparison, _compare

LINE = ("train.py", 7, "step")


def compared(
    device: torch.Tensor, cpu: torch.Tensor, tolerance: float | None = None, read: float = 0.0
) -> Mismatch | None:
    return _compare(device, cpu, tolerance, ("aten::op", LINE), "f32[2]", read)


def test_what_differs_by_rounding_agrees_and_what_differs_more_does_not() -> None:
    cpu = torch.tensor([[1.0, -4.0], [0.0, 2.0]])
    assert compared(cpu, cpu) is None and compared(cpu + 1e-5, cpu) is None
    found = compared(cpu + torch.tensor([[0.0, 0.0], [0.5, 0.25]]), cpu)
    assert found is not None and (found.place, found.device, found.cpu, found.relative) == ((1, 0), 0.5, 0.0, 0.125)
    assert str(found) == (
        "aten::op at train.py:7 in step: f32[2] differs by 0.125 of its largest element (allowed: 1e-05), "
        "most at [1, 0]: device 0.5, CPU 0"
    )
    assert compared(cpu + 0.375, cpu, tolerance=0.1) is None and compared(cpu + 0.5, cpu, tolerance=0.1) is not None


def test_nan_and_infinity_agree_with_themselves_alone() -> None:
    odd = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    assert compared(odd, odd) is None
    for place in range(3):
        other = odd.clone()
        other[place] = 1.0
        found = compared(other, odd)
        assert found is not None and found.place == (place,) and found.relative == float("inf")


def test_integers_are_exact_however_large() -> None:
    large = torch.tensor([2**62 + 1, 5])
    assert compared(large, large) is None
    found = compared(large, torch.tensor([2**62, 5]))
    assert found is not None and found.place == (0,) and found.relative == float("inf")
    flags = torch.tensor([True, False])
    assert compared(flags, flags) is None and compared(~flags, flags) is not None


def test_what_cancels_is_as_wrong_as_its_terms_are_large() -> None:
    cpu, device = torch.tensor([1e-4]), torch.tensor([1e-4 + 1e-6])
    assert compared(device, cpu) is not None and compared(device, cpu, read=10.0) is None
    # So much larger than the result that it can only be a mask.
    assert compared(device, cpu, read=1e9) is not None


def test_the_coarser_dtype_decides_and_empty_results_agree() -> None:
    one = torch.tensor([1.0])
    assert compared((one + 1 / 128).bfloat16(), one) is None and compared(one + 1 / 128, one) is not None
    assert compared(torch.zeros(0, 3), torch.zeros(0, 3)) is None
    assert compared(one * (1 + 1j), one * (1 + 1j)) is None and compared(one * 1j, one * (1 + 1j)) is not None


def test_the_text_says_what_was_compared() -> None:
    made = {"device": "cpu", "torch": "2", "jax": "1"}
    found = StepComparison("step.pt", made, programs=1, operators=2, compared=2, outputs=1)
    assert found.agrees and found.first is None
    assert str(found) == (
        "step.pt: 2 operators in 1 program, captured on cpu with torch 2, jax 1\n"
        "Each of the 2 operators compared gives on the device what PyTorch gives on the CPU.\n"
        "The results of the step (1) are those of PyTorch."
    )
    small, large = (Mismatch("op", None, "f32[]", off, 1e-5, (), 1.0, 2.0) for off in (0.1, 0.5))
    found.differences, found.skipped = [small, large], {"aten::rand": "it draws"}
    text = str(found)
    assert not found.agrees and found.first is small and "2 of 2 operators compared differ" in text
    assert "and the one that differs most" in text and text.endswith("Not compared: aten::rand (it draws)")
    nothing = StepComparison("step.pt", made, programs=1, operators=1, without_results=True)
    assert "their results are not in this file" in str(nothing) and "No result of the step was compared." in str(
        nothing
    )
