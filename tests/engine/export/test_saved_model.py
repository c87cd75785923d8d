"""An exported model in a directory."""

import json
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from torch_xla._engine.export import exported_program, saved_model, standalone_loader
from torch_xla._engine.export.saved_model import (
    InputLocation,
    StableHLOFunctionMeta,
    StableHLOModelBundle,
    VariableSignature,
)

META = StableHLOFunctionMeta(
    "forward.v1", "1.0.0", [VariableSignature([-1, 3], "float32", [0], "b,3,")], [VariableSignature([3], "int64")],
    [InputLocation.parameter("layer.weight"), InputLocation.constant(2), InputLocation.input_arg(0)], [],
)  # fmt: skip


def exported(name: str = "forward") -> StableHLOModelBundle:
    return exported_program.convert(
        torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), exported_program.Options(), name
    )


def test_descriptions_come_back_from_json() -> None:
    text = json.dumps(META, cls=saved_model.StableHLOJSONSerializer)
    assert json.loads(text, object_hook=saved_model.stablehlo_obj_hook) == META
    assert json.loads('{"a": {"_type": "Else", "b": 1}}', object_hook=saved_model.stablehlo_obj_hook) == {"a": {"b": 1}}
    with pytest.raises(TypeError):
        json.dumps({1, 2}, cls=saved_model.StableHLOJSONSerializer)


@pytest.mark.slow
def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    one = exported()
    one.additional_constants.append(np.arange(3))
    saved_model.save(one, tmp_path / "new" / "folder", True, True)
    found = saved_model.load(tmp_path / "new" / "folder")
    assert set(found.state_dict) == {"weight", "bias"}
    for name, array in one.state_dict.items():
        np.testing.assert_array_equal(found.state_dict[name], array)
    assert found.additional_constants[0].tolist() == [0, 1, 2]
    (mine,), (theirs,) = one.stablehlo_funcs, found.stablehlo_funcs
    assert mine.meta == theirs.meta and mine.bytecode == theirs.bytecode and mine.text == theirs.text


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "float32"])
def test_arrays_of_every_dtype_are_read_again(name: str, tmp_path: Path) -> None:
    array = np.array([1.0, 0.5]).astype(jnp.dtype(name))
    saved_model._save_array(tmp_path / "one.npy", array)
    found = standalone_loader.read(tmp_path / "one.npy", name)
    assert found.dtype == array.dtype and found.tolist() == array.tolist()


def test_functions_with_dots_in_their_names_stay_apart(tmp_path: Path) -> None:
    both = exported("step.one")
    both.stablehlo_funcs += exported("step.two").stablehlo_funcs
    saved_model.save(both, tmp_path, True, False)
    assert [each.meta.name for each in saved_model.load(tmp_path).stablehlo_funcs] == ["step.one", "step.two"]


def test_weights_and_text_may_stay_behind(tmp_path: Path) -> None:
    saved_model.save(exported(), tmp_path, False, False)
    assert not list((tmp_path / "data").iterdir()) and not list((tmp_path / "functions").glob("*.mlir"))
    found = saved_model.load(tmp_path)
    assert found.state_dict == {} and "stablehlo" in str(found.stablehlo_funcs[0].text)
    with pytest.raises(FileNotFoundError, match="holds no exported model: there is no"):
        saved_model.load(tmp_path / "none")


def test_arguments_have_the_structure_with_which_the_model_was_exported() -> None:
    spec = pytree.treespec_dumps(pytree.tree_structure(((1, {"a": 2}), {"k": 3})))
    meta = replace(META, input_pytree_spec=spec)
    assert saved_model.arguments_of(meta, (5, {"a": 6}), {"k": 7}) == [5, 6, 7]
    with pytest.raises(ValueError, match=r"forward.v1\(\) was exported for arguments of the structure"):
        saved_model.arguments_of(meta, (5, 6), {"k": 7})
    assert saved_model.arguments_of(META, (1, [2]), {"k": 3}) == [1, 2, 3]  # nothing is known
