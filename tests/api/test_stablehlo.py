"""Exported models compute what the model computes, here and in a process that has nothing but JAX."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as dialect

import torch_xla.debug.metrics as met
from torch_xla.experimental.mark_pattern_utils import StableHLOCompositeBuilder
from torch_xla.stablehlo import (
    StableHLOExportOptions,
    StableHLOGraphModule,
    StableHLOJSONSerializer,
    VariableType,
    exported_program_to_stablehlo,
    save_torch_model_as_stablehlo,
    stablehlo_function,
    stablehlo_obj_hook,
)

DOUBLED = """
func.func @main(%x: tensor<2x3xf32>, %n: tensor<i64>) -> (tensor<2x3xf32>, tensor<i64>) {
  %y = stablehlo.add %x, %x : tensor<2x3xf32>
  %m = stablehlo.multiply %n, %n : tensor<i64>
  return %y, %m : tensor<2x3xf32>, tensor<i64>
}"""

# Of what a reader needs, JAX alone is imported.
ALONE = """
import importlib.util, sys
import numpy as np
spec = importlib.util.spec_from_file_location("load", sys.argv[1] + "/load.py")
load = importlib.util.module_from_spec(spec)
spec.loader.exec_module(load)
inputs = np.load(sys.argv[2])
results = load.load(sys.argv[1])["forward"](*(inputs[name] for name in inputs.files))
np.savez(sys.argv[3], *map(np.asarray, results))
assert not {"torch", "torch_xla"} & set(sys.modules)
"""


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 8)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = torch.nn.LayerNorm(8)
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)
        self.offset = torch.arange(8.0)  # a constant of the graph

    def forward(self, tokens: torch.Tensor) -> dict[str, Any]:
        hidden = self.embedding(tokens)
        hidden = hidden + self.attention(hidden, hidden, hidden, need_weights=False)[0]
        hidden = self.norm(hidden) * self.scale + self.offset
        return {"hidden": hidden, "nothing": None, "pooled": [hidden.mean(1), tokens.sum(dtype=torch.int64)]}


def export(model: torch.nn.Module, *args: Any, dynamic_shapes: Any = None, **options: Any) -> StableHLOGraphModule:
    exported = torch.export.export(model, args, dynamic_shapes=dynamic_shapes)
    return exported_program_to_stablehlo(exported, StableHLOExportOptions(**options))


def test_a_model_gives_what_it_gives_on_the_cpu(tmp_path: Path) -> None:
    model, tokens = Network().eval(), torch.randint(10, (3, 5))
    program = export(model, tokens)
    program.save(tmp_path)
    expected = model(tokens)
    for each in (program, StableHLOGraphModule.load(tmp_path)):
        result = each(tokens)
        assert result["nothing"] is None
        torch.testing.assert_close(result["hidden"].cpu(), expected["hidden"], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(result["pooled"][0].cpu(), expected["pooled"][0], rtol=1e-5, atol=1e-5)
        assert result["pooled"][1].cpu() == expected["pooled"][1] and result["pooled"][1].dtype is torch.int64


@pytest.mark.parametrize("inline", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_constants_are_part_of_the_program_or_arguments(inline: bool, tmp_path: Path) -> None:
    model, tokens = Network().eval(), torch.randint(10, (2, 4))
    program = export(model, tokens, inline_all_constant=inline)
    kinds = [place.type_ for place in program._bundle.stablehlo_funcs[0].meta.input_locations]
    assert (VariableType.CONSTANT in kinds) is not inline
    program.save(tmp_path)
    result = StableHLOGraphModule.load(tmp_path)(tokens)
    torch.testing.assert_close(result["hidden"].cpu(), model(tokens)["hidden"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_a_process_with_jax_alone_runs_it(dtype: torch.dtype, tmp_path: Path) -> None:
    batch = torch.export.Dim("batch")
    model, x = (
        torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.GELU(), torch.nn.Linear(6, 2)).to(dtype),
        torch.randn(3, 4),
    )
    export(model, x.to(dtype), dynamic_shapes=({0: batch},)).save(tmp_path / "model")
    x = torch.randn(7, 4).to(dtype)
    bits = x.view(torch.int16).numpy().view("V2") if dtype is torch.bfloat16 else x.numpy()
    np.savez(tmp_path / "inputs.npz", bits)
    script = ALONE
    if dtype is torch.bfloat16:
        script = script.replace("inputs[name]", "inputs[name].view(load.jnp.bfloat16)").replace(
            "np.asarray, results", "lambda x: np.asarray(x.astype('float32')), results"
        )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", script, tmp_path / "model", tmp_path / "inputs.npz", tmp_path / "outputs.npz"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    result = torch.from_numpy(np.load(tmp_path / "outputs.npz")["arr_0"])
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(result, model(x).float(), rtol=tolerance, atol=tolerance)


def test_a_dynamic_dimension_takes_every_size(tmp_path: Path) -> None:
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=64)
    model = Network().eval()
    program = export(model, torch.randint(10, (3, 5)), dynamic_shapes=({0: batch, 1: length},))
    signature = program._bundle.stablehlo_funcs[0].meta.output_signature[0]
    assert signature.shape == [-1, -1, 8] and signature.dynamic_dims == [0, 1]
    program.save(tmp_path)
    loaded = StableHLOGraphModule.load(tmp_path)
    for size in ((2, 2), (4, 9)):
        tokens = torch.randint(10, size)
        expected = model(tokens)["hidden"]
        for each in (program, loaded):
            torch.testing.assert_close(each(tokens)["hidden"].cpu(), expected, rtol=1e-5, atol=1e-5)


def test_what_models_do_with_a_dynamic_batch() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.narrow = torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.Conv2d(64, 8, 3, stride=2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            batch = x.shape[0]
            rows = torch.arange(batch)  # a size among the numbers
            turned = x.flatten(2).permute(2, 0, 1).mul(2).permute(1, 2, 0)
            attended = torch.nn.functional.scaled_dot_product_attention(turned, turned, turned)
            whole = attended.transpose(0, 1).reshape(64, batch, 8, 8).transpose(0, 1)
            every_other = torch.arange(0, 2 * batch, 2, dtype=torch.float32)
            return self.narrow(self.wide(whole)), x[rows, 0], every_other, attended.view(-1, 64)

    model, batch = Model().eval(), torch.export.Dim("batch", max=64)
    program = export(model, torch.randn(2, 64, 8, 8), dynamic_shapes=({0: batch},))
    for size in (1, 3):
        x = torch.randn(size, 64, 8, 8)
        for found, expected in zip(program(x), model(x), strict=True):
            torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_what_a_model_writes_to_buffers_is_kept(tmp_path: Path) -> None:
    model, reference = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    x = torch.randn(8, 3)
    program = export(model, x)
    for _ in range(2):
        result, expected = program(x), reference(x)
    torch.testing.assert_close(result.cpu(), expected)
    program.save(tmp_path)
    saved = StableHLOGraphModule.load(tmp_path)._bundle.state_dict
    torch.testing.assert_close(torch.from_numpy(saved["running_mean"]), reference.running_mean)
    assert saved["num_batches_tracked"] == 2


def test_random_numbers_come_from_a_key_among_the_constants() -> None:
    with pytest.warns(UserWarning, match="draws random numbers"):
        program = export(torch.nn.Dropout(0.5).train(), torch.ones(1000))
    first = program(torch.ones(1000)).cpu()
    assert 300 < int((first == 0).sum()) < 700
    assert torch.equal(program(torch.ones(1000)).cpu(), first)
    program._bundle.additional_constants[-1] = np.array([5, 6, 7, 8], np.uint32)
    assert not torch.equal(program(torch.ones(1000)).cpu(), first)


def test_keyword_arguments_keep_their_structure() -> None:
    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, others: dict[str, torch.Tensor], factor: float = 2.0) -> torch.Tensor:
            return factor * (x + others["a"] - others["b"])

    x, a, b = torch.randn(3), torch.randn(3), torch.randn(3)
    exported = torch.export.export(Sum(), (x,), {"others": {"a": a, "b": b}, "factor": 3.0})
    program = exported_program_to_stablehlo(exported)
    torch.testing.assert_close(program(x, others={"a": a, "b": b}, factor=3.0).cpu(), 3 * (x + a - b))
    with pytest.raises(ValueError, match="exported for arguments of the structure"):
        program(x, others={"a": a})
    with pytest.raises(ValueError, match=r"argument 0 of the program is float32\[3\]; got float32\[4\]"):
        program(torch.randn(4), others={"a": a, "b": b}, factor=3.0)


def test_weights_may_stay_behind(tmp_path: Path) -> None:
    model, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    export(model, x).save(tmp_path, StableHLOExportOptions(save_weights=False, include_human_readable_text=False))
    assert not list((tmp_path / "data").iterdir()) and not list(tmp_path.glob("functions/*.mlir"))
    loaded = StableHLOGraphModule.load(tmp_path)
    with pytest.raises(KeyError, match="no weight 'weight'"):
        loaded(x)
    loaded._bundle.state_dict.update({name: each.detach().numpy() for name, each in model.named_parameters()})
    torch.testing.assert_close(loaded(x).cpu(), model(x))
    assert export(model, x, export_weights=False)._bundle.state_dict == {}


def test_a_program_is_one_operation_among_others() -> None:
    program, x = export(torch.nn.Softmax(-1), torch.randn(3, 4)), torch.randn(3, 4, device="xla")
    met.clear_all()
    result = (program(x + 1) * 2).cpu()
    torch.testing.assert_close(result, (x.cpu() + 1).softmax(-1) * 2)
    assert met.counter_value("UncachedCompile") == 1


def test_several_platforms() -> None:
    program = export(torch.nn.ReLU(), torch.randn(3), platforms=("cpu", "cuda", "tpu"))
    assert program(torch.tensor([-1.0, 0.0, 2.0])).tolist() == [0.0, 0.0, 2.0]
    assert program._bundle.stablehlo_funcs[0].meta.platforms == ["cpu", "cuda", "tpu"]


def test_an_operator_without_a_rule_is_named_or_left_to_others() -> None:
    library = torch.library.Library("export_test", "DEF")
    library.define("mystery(Tensor x) -> Tensor")
    library.impl("mystery", lambda x: x.clone(), "CompositeExplicitAutograd")
    library.impl("mystery", lambda x: torch.empty_like(x), "Meta")

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.export_test.mystery(x) + 1  # type: ignore[no-any-return]

    with pytest.raises(NotImplementedError, match=r"no rule lowers export_test.mystery.default"):
        export(Model(), torch.ones(2))
    text = export(Model(), torch.ones(2), custom_ops_allowed_in_graph={"export_test"}).get_stablehlo_text()
    assert "stablehlo.custom_call @export_test.mystery" in text


class Marked(torch.nn.Module):
    """One composite inside another, with a weight that no mark names, and one of two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outer = StableHLOCompositeBuilder("test.outer", {"rate": 0.5, "name": "o"})
        x, shift = outer.mark_inputs(x, x.sum())
        inner = StableHLOCompositeBuilder("test.inner")
        hidden = inner.mark_outputs(self.linear(inner.mark_inputs(x)).tanh())
        low, high = outer.mark_outputs(hidden - shift, hidden + shift)
        return low.exp(), high


def test_marked_parts_become_composites(tmp_path: Path) -> None:
    model, x = Marked(), torch.randn(2, 4)
    program = export(model, x)
    text = program.get_stablehlo_text()
    assert text.count('stablehlo.composite "test.outer"') == 1 and text.count('stablehlo.composite "test.inner"') == 1
    assert 'name = "o", rate = 5.0' in text
    program.save(tmp_path)
    for each in (program, StableHLOGraphModule.load(tmp_path), copy.deepcopy(model).to("xla")):
        for result, expected in zip(each(x.to("xla")), model(x), strict=True):
            torch.testing.assert_close(result.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_marks_that_do_not_fit_are_refused() -> None:
    builder = StableHLOCompositeBuilder("test.twice")
    builder.mark_inputs(torch.ones(1))
    builder.mark_outputs(torch.ones(1))
    for closed in (builder, StableHLOCompositeBuilder("test.twice")):
        with pytest.raises(
            ValueError, match="outputs of composite 'test.twice' are marked by one call of mark_outputs"
        ):
            closed.mark_outputs(torch.ones(1))

    class Open(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return StableHLOCompositeBuilder("test.open").mark_inputs(x) + 1  # type: ignore[no-any-return]

    with pytest.raises(ValueError, match="the outputs of composite 'test.open' are marked with positions"):
        export(Open(), torch.ones(2))


def test_a_saved_model_of_an_older_version_loads(tmp_path: Path) -> None:
    model, batch = Network().eval(), torch.export.Dim("batch", min=2)
    export(model, torch.randint(10, (3, 5)), dynamic_shapes=({0: batch},)).save(tmp_path)
    artifact = tmp_path / "functions" / "forward.bytecode"
    current, oldest = dialect.get_current_version(), dialect.get_minimum_version()
    with ir.Context() as context:
        text = str(dialect.deserialize_portable_artifact(context, artifact.read_bytes()))
    artifact.write_bytes(dialect.serialize_portable_artifact_str(text, oldest))
    assert oldest != current and f"StableHLO_v{oldest}".encode() in artifact.read_bytes()
    tokens = torch.randint(10, (4, 5))
    hidden = StableHLOGraphModule.load(tmp_path)(tokens)["hidden"]
    torch.testing.assert_close(hidden.cpu(), model(tokens)["hidden"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["text", "portable", "older"])
def test_a_module_comes_in(form: str) -> None:
    module: str | bytes = DOUBLED
    if form == "portable":
        module = dialect.serialize_portable_artifact_str(DOUBLED, dialect.get_current_version())
    elif form == "older":
        module = dialect.serialize_portable_artifact_str(DOUBLED, dialect.get_minimum_version())
    function = stablehlo_function(module)
    x = torch.randn(2, 3, device="xla")
    doubled, squared = function(x + 1, torch.tensor(1 << 33))
    torch.testing.assert_close(doubled.cpu(), 2 * (x.cpu() + 1))
    assert squared.item() == 0  # 2**66 in 64 bits
    with pytest.raises(ValueError, match=r"argument 0 of the program is float32\[2, 3\]; got int64\[2, 3\]"):
        function(torch.ones(2, 3, dtype=torch.int64), torch.tensor(1))
    with pytest.raises(TypeError, match="takes 2 tensors; got 1"):
        function(x)


def test_two_modules_of_one_signature_are_two_programs() -> None:
    plus = stablehlo_function(DOUBLED)
    minus = stablehlo_function(DOUBLED.replace("stablehlo.add", "stablehlo.subtract"))
    x, n = torch.ones(2, 3, device="xla"), torch.tensor(1)
    assert plus(x, n)[0].sum().item() == 12 and minus(x, n)[0].sum().item() == 0


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(ValueError, match="this is no module of StableHLO"):
        stablehlo_function("hello")
    with pytest.raises(ValueError, match="has static shapes; got tensor<"):
        stablehlo_function("func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }")


def test_descriptions_survive_json() -> None:
    meta = export(torch.nn.ReLU(), torch.ones(2))._bundle.stablehlo_funcs[0].meta
    assert json.loads(json.dumps(meta, cls=StableHLOJSONSerializer), object_hook=stablehlo_obj_hook) == meta


def test_a_model_is_saved_in_one_call(tmp_path: Path) -> None:
    save_torch_model_as_stablehlo(torch.nn.Tanh(), (torch.ones(3),), tmp_path)
    assert (tmp_path / "functions" / "forward.mlir").read_text().startswith("module")
    torch.testing.assert_close(StableHLOGraphModule.load(tmp_path)(torch.ones(3)).cpu(), torch.ones(3).tanh())
    with pytest.raises(FileNotFoundError, match="holds no exported model"):
        StableHLOGraphModule.load(tmp_path / "elsewhere")


def test_the_version_of_an_artifact_may_be_named(tmp_path: Path) -> None:
    exported = torch.export.export(torch.nn.GELU(), (torch.ones(3),))
    for version, written in ((None, "0.19.0"), ("1.13.0", "1.13.0")):
        options = StableHLOExportOptions(stablehlo_version=version)
        program = exported_program_to_stablehlo(exported, options)
        assert program._bundle.stablehlo_funcs[0].meta.stablehlo_version == written
        assert f"StableHLO_v{written}".encode() in program.get_stablehlo_bytecode()[:64]
    assert b"StableHLO_v1.8.0" in program.get_stablehlo_bytecode(stablehlo_version="1.8.0")[:64]
    program.save(tmp_path, StableHLOExportOptions(stablehlo_version="1.9.0"))
    loaded = StableHLOGraphModule.load(tmp_path)
    assert loaded._bundle.stablehlo_funcs[0].meta.stablehlo_version == "1.9.0"
    assert b"StableHLO_v1.9.0" in loaded.get_stablehlo_bytecode()[:64]
    torch.testing.assert_close(loaded(torch.ones(3)).cpu(), torch.nn.functional.gelu(torch.ones(3)))
    with pytest.raises(ValueError, match="StableHLO 0.9.0 cannot hold the operation 'stablehlo.composite'"):
        exported_program_to_stablehlo(exported, StableHLOExportOptions(stablehlo_version="0.9.0"))
