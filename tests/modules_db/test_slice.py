"""A slice of PyTorch's database of modules; all of it: `python -m tests.modules_db`."""

import pytest

from tests.opinfo.entries import Entry

from .check import check_module
from .entries import database

# One of each kind: what its file of rules does, how it orders memory, whether it keeps statistics or draws numbers.
SLICE = [
    ("nn.BatchNorm2d", "float32"),
    ("nn.BatchNorm1d", "bfloat16"),
    ("nn.Conv2d", "float32"),
    ("nn.LazyConvTranspose2d", "float32"),
    ("nn.AdaptiveMaxPool2d", "float32"),
    ("nn.FractionalMaxPool2d", "float32"),
    ("nn.CrossEntropyLoss", "float64"),
    ("nn.CTCLoss", "float32"),
    ("nn.GELU", "float16"),
    ("nn.GroupNorm", "float32"),
    ("nn.Embedding", "float32"),
    ("nn.LSTM", "float32"),
    ("nn.GRUCell", "float64"),
    ("nn.MultiheadAttention", "float32"),
    ("nn.TransformerEncoderLayer", "float32"),
    ("nn.ReplicationPad3d", "float32"),
    ("nn.CircularPad2d", "float32"),
]


@pytest.mark.parametrize(("name", "dtype"), SLICE, ids=lambda value: value)
def test_a_module_does_what_it_does_on_the_cpu(name: str, dtype: str) -> None:
    verdict = check_module(Entry(name, dtype), 2, few=0)
    assert verdict.samples and not verdict.failures and not verdict.fallbacks, verdict


def test_the_database_has_the_classes_of_this_release() -> None:
    assert len(database()) > 100
