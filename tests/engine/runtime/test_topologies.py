"""Devices of machines that are not here."""

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.topologies import needs_gpu_compiler, needs_tpu_compiler
from torch_xla._engine.runtime import topologies
from torch_xla._engine.runtime.topologies import Topology, devices_of, named


def test_names() -> None:
    assert named("v5e:4x4") == Topology("v5e:4x4") and named("2*v5p:2x2x4") == Topology("v5p:2x2x4", slices=2)
    assert str(named(Topology("h100:8", slices=2))) == "2*h100:8" and named("h100:8").kind == "h100"
    assert named(Topology("mine:8", target_config="platform_name: 'CUDA'")).kind == "mine"


@pytest.mark.parametrize("name", ["", "v5e", "v9:2x2", "v5e:", "v5e:2y2", "TPU v5e:2x2", "mine:8", "v5e:4x4 "])
def test_another_form_is_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(ValueError, match=r"^topology='.*': expected a kind of chip .* Known kinds are v4, .*, h100"):
        named(name)


@pytest.mark.parametrize(("name", "command"), [("v5e:2x2", "plan-tpu"), ("a100:8", "plan-cuda12")])
def test_without_the_compiler_the_error_has_the_command(
    name: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topologies.importlib.util, "find_spec", lambda module: None)
    devices_of.cache_clear()
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'torch_xla\[{command}\]' \(JAX here is "):
        devices_of(named(name))


@needs_tpu_compiler
@pytest.mark.parametrize(("name", "count", "kind"), [
    ("v5e:1x1", 1, "TPU v5 lite"), ("v5e:4x4", 16, "TPU v5 lite"), ("v5p:2x2x4", 16, "TPU v5"),
    ("v6e:8x8", 64, "TPU v6 lite"), ("v4:2x2x1", 4, "TPU v4"), ("2*v5e:2x2", 8, "TPU v5 lite"),
])  # fmt: skip
def test_tpus(name: str, count: int, kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    before = dict(os.environ)
    found: Any = devices_of(named(name))
    assert len(found) == count and {each.device_kind for each in found} == {kind}
    assert capfd.readouterr() == ("", "") and dict(os.environ) == before
    if name.startswith("2*"):
        assert [each.slice_index for each in found] == [0] * 4 + [1] * 4


@needs_tpu_compiler
@pytest.mark.parametrize("first", [
    "torch_xla.device(); torch_xla.runtime.device_type()", 'torch_xla.debug.plan(lambda: x + 1, topology="v5e:1x1")',
])  # fmt: skip
def test_the_first_use_beside_the_compiler_writes_nothing(first: str) -> None:
    code = f'import torch, torch_xla\nx = torch.ones(2, device="xla")\n{first}'
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_tpu_compiler
def test_a_shape_that_no_machine_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"topology='v5e:3x3': XLA's compiler knows no such machine: "):
        devices_of(named("v5e:3x3"))


@needs_tpu_compiler
def test_the_compiler_says_what_programs_can_use() -> None:
    assert topologies.memory_of(devices_of(named("v5e:1x1"))[0]) == int(15.75 * 2**30)


@needs_gpu_compiler
def test_gpus(capfd: pytest.CaptureFixture[str]) -> None:
    for name, count, model in (("h100:8", 8, "H100"), ("a100:1", 1, "A100"), ("h200:16", 16, "H200")):
        found = devices_of(named(name))
        assert len(found) == count and model in found[0].device_kind and found[0].platform == "gpu"
        assert topologies.memory_of(found[0]) is None
    assert len(devices_of(named("2*h100:8"))) == 16
    with pytest.raises(ValueError, match="more than 8 GPUs are whole machines"):
        devices_of(named("h100:12"))
    own = Topology("mine:2", target_config=topologies.TEXTS["h100"].replace("132", "66"))
    assert len(devices_of(named(own))) == 2
