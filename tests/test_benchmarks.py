"""The benchmarks measure what they claim to: the same models, the same steps."""

import ast
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torch_xla
from benchmarks import decode, devices, former, hookless, long_run, page, readme
from benchmarks.contestants import Compiled, Eager, OpenXla, Ours, Replay, Setting
from benchmarks.decoders import DECODERS
from benchmarks.jax_steps import JaxInference, JaxTraining, autocast, forward_of, weights_of
from benchmarks.models import NARROW, WORKLOADS, Encoder, ResNet50
from tests.support.topologies import needs_tpu_compiler


def losses(contestant: Eager | Ours, steps: int) -> list[float]:
    found: list[Tensor] = []
    for _ in range(steps):
        found.append(contestant.steps.step())
        contestant.wait()
    return [loss.item() for loss in found]


SLOW = ("encoder", "llama_like", "gpt2_like", "bert_like", "resnet_like", "vit_like")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in WORKLOADS])
def test_a_model_in_jax_is_the_model_in_pytorch(name: str) -> None:
    torch.manual_seed(0)
    model, (inputs, targets) = WORKLOADS[name].build(0.0), WORKLOADS[name].batch(2)
    in_jax = JaxTraining(name, model, (inputs, targets), 0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(torch.tensor(float(in_jax.step())), loss.detach(), rtol=0, atol=2e-3)
    with torch.no_grad():
        expected = model.eval()(inputs)
    found = JaxInference(name, model, (inputs, targets)).step()
    torch.testing.assert_close(torch.tensor(np.asarray(found)), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_resnet_50_in_jax_is_the_model_in_pytorch() -> None:
    torch.manual_seed(0)
    model, (inputs, targets) = ResNet50().double(), WORKLOADS["resnet_like"].batch(2)
    found = JaxInference("resnet50", model.eval(), (inputs, targets)).step()
    with torch.no_grad():
        torch.testing.assert_close(
            torch.tensor(np.asarray(found)), model(inputs.double()).float(), rtol=1e-3, atol=1e-3
        )
    in_jax = JaxTraining("resnet50", model.train(), (inputs, targets), 0.0)
    loss = F.cross_entropy(model(inputs.double()), targets)
    torch.testing.assert_close(torch.tensor(float(in_jax.step())), loss.detach().float(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", NARROW)
def test_a_narrow_model_in_jax_is_the_model_in_pytorch(name: str) -> None:
    torch.manual_seed(0)
    model, (inputs, targets) = NARROW[name].build(0.0), NARROW[name].batch()
    with torch.no_grad():
        expected = model.eval()(inputs)
    found = JaxInference(name, model, (inputs, targets)).step()
    torch.testing.assert_close(torch.tensor(np.asarray(found)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_encoder_in_jax_is_trained_as_in_pytorch() -> None:
    torch.manual_seed(0)
    model, (inputs, targets) = Encoder(0.0, layers=2), WORKLOADS["encoder"].batch()
    in_jax = JaxTraining("encoder", model, (inputs, targets), 0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(5):
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(torch.tensor(float(in_jax.step())), loss.detach(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["mlp", *(pytest.param(n, marks=pytest.mark.slow) for n in ("encoder", "llama_like"))])
def test_both_devices_are_given_the_same_training(name: str) -> None:
    # One step's rounding is amplified by AdamW, which divides by the size of the gradient.
    expected = losses(Eager(WORKLOADS[name], 0.0), 4)
    assert losses(Ours(WORKLOADS[name], 0.0), 4) == pytest.approx(expected, abs=1e-4)


def test_a_compiled_model_is_given_the_same_training() -> None:
    assert losses(OpenXla(WORKLOADS["mlp"], 0.0), 4) == pytest.approx(losses(Eager(WORKLOADS["mlp"], 0.0), 4), abs=1e-4)


@pytest.mark.parametrize("contestant", [Compiled, Replay])
def test_a_replayed_step_is_the_same_training(contestant: type[Compiled]) -> None:
    ours = contestant(WORKLOADS["mlp"], 0.0)
    steps = min(ours.settles, 30)
    found = [ours.called().item() for _ in range(steps)]
    assert ours.called.is_replayed
    assert found == pytest.approx(losses(Eager(WORKLOADS["mlp"], 0.0), steps), abs=1e-4)


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_bfloat16_is_given_to_both_devices(mode: str) -> None:
    setting = Setting(mode, "bfloat16", batch=3)
    eager, ours = Eager(WORKLOADS["mlp"], 0.0, setting), Ours(WORKLOADS["mlp"], 0.0, setting)
    if mode == "training":
        assert losses(ours, 3) == pytest.approx(losses(eager, 3), abs=2e-2)
    else:
        logits = ours.steps.step()
        assert logits.shape == (3, 10) and logits.dtype is torch.bfloat16
        torch.testing.assert_close(logits.cpu(), eager.steps.step(), rtol=2e-2, atol=2e-2)


def test_a_section_of_the_page_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    written = tmp_path / "page.md"
    page.put(written, "## One", "1")
    page.put(written, "## Two", "2")
    page.put(written, "## One", "uno")
    assert written.read_text() == f"{page.TITLE}\n\n## One\n\nuno\n\n## Two\n\n2\n"


def test_the_readme_has_the_other_package_s_figures_once_they_were_measured() -> None:
    before = readme.PAGE.read_text().replace(page.section(readme.PAGE.read_text(), former.HEADING), "")
    assert former.COLUMN not in readme.shown(before)
    title = WORKLOADS["mlp"].title
    told = "Against torch_xla 2.9.0 with torch 2.9.0, on 2026-11-01."
    measured = page.table(["model", "ms", "ms", ""], [[title, "7.5", "3", "1"]])
    after = f"{before}\n{former.HEADING}\n\n{told}\n\n{measured}\n"
    lines = readme.shown(after).splitlines()
    assert lines[0].endswith(f"| {former.COLUMN} |")
    assert {line.split(" | ")[0]: line.split(" | ")[-1] for line in lines}[f"| {title}"] == "7.5 |"
    assert sum(line.endswith("| – |") for line in lines) == len(readme.SHOWN) - 1
    assert "2026-11-02; PyTorch/XLA 2.9 on 2026-11-01:" in readme.told(after, "2026-11-02")


@pytest.mark.slow
def test_another_package_is_given_the_same_training() -> None:
    # This package in place of the other one: both have the functions that the process calls.
    with former.side(sys.executable, former.HERE.parent) as side:
        assert side.package == torch_xla.__version__
        assert side.ask("losses mlp 4") == pytest.approx(losses(Eager(WORKLOADS["mlp"], 0.0), 4), abs=1e-4)
        assert side.ask("timed mlp 2") > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_every_way_of_decoding_writes_the_same_text(name: str) -> None:
    def text(writer: decode.Writer) -> list[int]:
        writer.restart()
        found = []
        for _ in range(8):
            writer.step()
            found.append(writer.model.token.flatten().tolist())
        return found

    build = lambda: DECODERS[name](2, 16, 1)  # noqa: E731
    expected = text(decode.writer("eager", build, torch.float32))
    assert len({tuple(tokens) for tokens in expected}) > 1
    for way in ("ours", "openxla", "replay"):
        assert text(decode.writer(way, build, torch.float32)) == expected


def test_the_decoder_in_jax_writes_the_same_text() -> None:
    build = lambda: DECODERS["gpt2_like"](2, 16, 1)  # noqa: E731
    eager, in_jax = (decode.writer(name, build, torch.float32) for name in ("eager", "jax"))
    for _ in range(8):
        eager.step()
        assert np.asarray(in_jax.decoder.step()).tolist() == eager.model.token.tolist()


@pytest.mark.slow
def test_nothing_grows_in_a_long_run() -> None:
    # In a process of its own: what an earlier test left behind would end meanwhile.
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        intervals = long_run.Intervals(loss=20, evaluation=50, checkpoint=100)
        rows = process.submit(long_run.run, 400, intervals).result()
    first, last = rows[1], rows[-1]
    assert (last.programs, last.compiles, last.buffers) == (first.programs, first.compiles, first.buffers)
    # The lower of two and the higher of two: what the allocator has just given back is not what is needed.
    assert min(row.mebibytes for row in rows[2:]) < 1.1 * max(row.mebibytes for row in rows[:2])
    assert last.host < 3 * min(row.host for row in rows)  # other processes disturb it
    assert last.loss < rows[0].loss


@pytest.mark.parametrize("module", hookless.MODULES)
def test_no_hook_is_left_in_the_engine_without_any(module: str) -> None:
    path = Path(hookless.__file__).parents[1] / "torch_xla" / "_engine" / f"{module.replace('.', '/')}.py"
    tree = hookless.without_hooks(path.read_text())
    # Their hooks are for a new program, or for close watching.
    cold = ("_compile", "_refusal_of", "_schedule", "_transfer")
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name not in cold]
    text = "\n".join(ast.unparse(statement) for each in functions for statement in each.body)
    for hook in ("events.", "metrics.", "live_counters.", "note_line(", ".value +="):
        assert hook not in text, f"{module} still has {hook}"
    assert len(functions) > 2


def test_hooks_are_taken_out_and_the_rest_stays() -> None:
    source = """
from .. import metrics
from ..metrics import events
_count = metrics.counter("Count")
def work(x):
    start = time.perf_counter()
    _count.value += 1
    with metrics.timed("Time"):
        y = x + 1
    if events.watched or y > 3 and events.closely:
        events.emit(start)
    elif y:
        return y
    if not events.guarded:
        return x
    return None
"""
    kept = ast.unparse(hookless.without_hooks(source)).split("def work(x):\n")[1]
    assert kept == "    y = x + 1\n    if y:\n        return y\n    return x"


@pytest.mark.parametrize("name", ["gpt2_like", "llama_like"])
def test_a_model_in_jax_computes_in_the_dtypes_of_autocast(name: str) -> None:
    torch.manual_seed(0)
    model, (inputs, _) = NARROW[name].build(0.0), NARROW[name].batch()
    weights = autocast(weights_of(model), np.dtype("bfloat16"))
    assert weights["embedding.weight"].dtype == weights["norm.weight"].dtype == np.float32
    assert weights["blocks.0.attention_out.weight"].dtype == np.dtype("bfloat16")
    found, _ = forward_of(name)(weights, inputs.numpy(), None, 0.0)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = model(inputs)
    assert found.dtype == np.dtype("bfloat16") and expected.dtype is torch.bfloat16
    torch.testing.assert_close(torch.tensor(np.asarray(found, np.float32)), expected.float(), rtol=0.02, atol=0.02)


def test_rows_are_divided_where_there_are_enough() -> None:
    assert devices.rows_divided((8, 3), 4) == (devices.AXIS, None)
    assert devices.rows_divided((6, 3), 4) == (None, None) and devices.rows_divided((), 4) == ()


def test_features_are_divided_as_megatron_does() -> None:
    assert devices.axes_of("tp", "blocks.0.gate.weight", (8, 4), 4) == (devices.AXIS, None)
    assert devices.axes_of("tp", "blocks.0.down.weight", (4, 8), 4) == (None, devices.AXIS)
    assert devices.axes_of("tp", "embedding.weight", (8, 4), 4) == (None, None) == devices.axes_of("tp", "", (8, 4), 4)


@needs_tpu_compiler
@pytest.mark.parametrize(("topology", "layout"), [("v5e:1x1", ""), ("v5e:2x2", "fsdp")])
def test_a_step_for_a_tpu_is_like_that_of_jax_by_hand(topology: str, layout: str) -> None:
    given = WORKLOADS["mlp"], "float32", topology, layout
    one, other = devices.ours(*given), devices.by_hand("mlp", *given)
    for field in ("bytes", "cycles"):
        assert 0 < getattr(one, field) <= 1.3 * getattr(other, field), (field, one, other)
    assert bool(one.collectives) == bool(other.collectives) == bool(layout)
