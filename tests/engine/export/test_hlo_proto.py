"""Serialised HLO modules under another name, and as JSON."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torch_xla
from torch_xla._engine.export import hlo_proto
from torch_xla._engine.planning.protobuf_reader import parsed
from torch_xla.core import xla_builder as xb
from torch_xla.experimental.stablehlo_custom_call import stablehlo_custom_call


def module_of(tensor: torch.Tensor) -> bytes:
    return torch_xla._XLAC._get_xla_tensors_hlo_proto([tensor])


@pytest.mark.parametrize("name", ["short", "n" * 127, "n" * 128, "n" * 20_000, "größer"])
def test_a_module_gets_another_name_and_computes_the_same(name: str) -> None:
    x = torch.arange(3.0).to("xla")
    proto = hlo_proto.renamed(module_of(x * x + 1), name)
    assert json.loads(hlo_proto.json_of(proto))["name"] == name
    assert xb.xla_computation_as_func(xb.computation_from_module_proto("c", proto))(x).tolist() == [1, 2, 5]


def test_instructions_are_shown_with_operands_metadata_and_attributes() -> None:
    x, y = torch.ones(2).to("xla"), torch.ones(2).to("xla")
    z = x - y
    torch_xla._XLAC._set_xla_custom_op_name_prefix(z, "layer", 0)
    called = stablehlo_custom_call([z], "mine", [[2]], [torch.float32], frontend_attributes={"stage": "0", "empty": ""})
    module = json.loads(hlo_proto.json_of(module_of(called)))
    (computation,) = module["computations"]
    assert module["entryComputationName"] == computation["name"] and module["entryComputationId"] == computation["id"]
    first, second, difference, call = computation["instructions"]
    assert [each["opcode"] for each in computation["instructions"]] == [
        "parameter", "parameter", "subtract", "custom-call",
    ]  # fmt: skip
    assert second["parameterNumber"] == "1" and "parameterNumber" not in first
    assert difference["operandIds"] == [first["id"], second["id"]] and call["operandIds"] == [difference["id"]]
    assert computation["rootId"] == call["id"] and call["customCallTarget"] == "mine"
    assert "layer/aten::sub" in difference["metadata"]["opName"]
    assert call["frontendAttributes"]["map"] == {"stage": "0", "empty": ""}


@given(st.lists(st.integers(0, 2**63 - 1)))
def test_numbers_in_a_row_are_read_back(numbers: list[int]) -> None:
    packed = b"".join(hlo_proto._varint(each) for each in numbers)
    assert hlo_proto._numbers(packed) == numbers
    assert hlo_proto._numbers(7) == [7]
    assert all(parsed(b"\x08" + hlo_proto._varint(each)) == {1: [each]} for each in numbers)
