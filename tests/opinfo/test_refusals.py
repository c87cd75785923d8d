"""A sample of what is refused; all of it: `python -m tests.opinfo --refusals`."""

import zlib
from pathlib import Path

import pytest
import torch

from torch_xla._engine.step.schedule import clear_schedules

from .compare import leaves
from .entries import Entry, database
from .operands import moved
from .refusals import ALL_DTYPES, REASONS, accepted, check_refusals, converted, entries_of_all

# The share of the entries to check: one of 150; in slow tests one of 12, or of 200 with each dtype.
EVERY = 150
OFTEN = 12
RARELY = 200
SOON = ("int64", "complex64")


def sample(dtype: str, every: int) -> list[Entry]:
    return [entry for entry in entries_of_all([dtype]) if zlib.crc32(str(entry).encode()) % every == 0]


@pytest.mark.parametrize(
    ("dtype", "every"),
    [
        *((dtype, EVERY) for dtype in SOON),
        pytest.param("int64", OFTEN, marks=pytest.mark.slow),
        *(pytest.param(dtype, RARELY, marks=pytest.mark.slow) for dtype in ALL_DTYPES if dtype not in SOON),
    ],
)
def test_a_sample_of_the_database_is_refused_as_on_the_cpu(dtype: str, every: int) -> None:
    chosen = sample(dtype, every)
    assert chosen, "none is looked at: take more entries"
    found = [f"{entry}: {failure}" for entry in chosen for failure in check_refusals(entry, 1).failures]
    clear_schedules()
    assert not found, "\n".join(found)


def test_only_a_kernel_that_accelerators_have_may_be_taken() -> None:
    op = database()["nn_functional_avg_pool3d"]
    missing, wrong = NotImplementedError("\"x\" not implemented for 'Half'"), RuntimeError("sizes differ")
    assert accepted(op, {torch.float16}, missing, None) == "accelerators"
    assert not accepted(op, {torch.int64}, missing, None)
    assert not accepted(op, {torch.float16}, wrong, None)
    assert not accepted(op, {torch.float16}, None, RuntimeError("refused here alone"))
    assert not accepted(database()["logaddexp"], {torch.int64}, missing, None)


NO_KERNEL_HERE = {
    "nanmean": "complex", "nansum": "complex",  # refused as on the CPU
    "torch_ops_aten__efficient_attention_forward": "CUDA's own",
    "nn_functional_batch_norm_without_cudnn": "CUDA's own",
    "abs": "PyTorch's meta kernel refuses truth values", "nn_functional_softsign": "PyTorch's meta kernel of abs",
}  # fmt: skip


def test_what_cuda_takes_and_the_cpu_does_not_is_computed() -> None:
    found = []
    for name, op in database().items():
        lacking = op.supported_dtypes("cuda") - op.supported_dtypes("cpu") - {torch.complex32}
        if name.startswith("fft_") or name in NO_KERNEL_HERE:
            continue  # of halves they give complex32, which XLA does not have
        for dtype in lacking:
            sample = next(iter(op.sample_inputs("cpu", torch.float32)))
            given = moved(converted((sample.input, sample.args, sample.kwargs), torch.float32, dtype), "xla")
            result = op.op(given[0], *given[1], **given[2])
            assert all(each.cpu().dtype for each in leaves(result) if isinstance(each, torch.Tensor)), name
            found.append(name)
    assert "nn_functional_avg_pool3d" in found and "histc" in found, "the database has changed"


def test_each_reason_to_differ_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operator_database.md").read_text()
    lines = {" ".join(cell.strip() for cell in line.split("|")) for line in page.splitlines()}
    for reason in REASONS.values():
        assert any(reason in line for line in lines), reason
