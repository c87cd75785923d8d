"""The command that runs PyTorch's own tests: a hang or a crash is a result, and the page shows it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.pytorch_tests.page import page, summary
from tools.pytorch_tests.results import Results

ROOT = Path(__file__).parents[1]

SUITE = """
import os, signal, time
import torch
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.common_device_type import instantiate_device_type_tests, dtypes, onlyCPU
from torch.testing._internal.common_cuda import only_the_old_release_has_it

class TestSmall(TestCase):
    def setUp(self):
        super(self.__class__, self).setUp()

    @dtypes(torch.float32, torch.int64)
    def test_sum(self, device, dtype):
        self.assertEqual(torch.ones(3, device=device, dtype=dtype).sum().item(), only_the_old_release_has_it())

    def test_fails_on_the_cpu(self, device):
        self.assertEqual(device, "xla")

    def test_differs(self, device):
        self.assertEqual(torch.device(device).type, "cpu")

    @onlyCPU
    def test_for_the_cpu(self, device):
        pass

    def test_hangs(self, device):
        time.sleep(0 if device == "cpu" else 1000)

    if os.environ["PYTORCH_TESTING_DEVICE_ONLY_FOR"] == "cpu":
        def test_is_made_for_the_cpu_alone(self, device):
            pass

    def test_kills(self, device):
        if device != "cpu":
            os.kill(os.getpid(), signal.SIGSEGV)

instantiate_device_type_tests(TestSmall, globals())
"""
OLD = """
def only_the_old_release_has_it():
    return 3
"""


ALONE = """
import torch
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.testing._internal.common_device_type import instantiate_device_type_tests, dtypes

class TestSmall(TestCase):
    @dtypes(torch.float32, torch.int64)
    def test_device(self, device, dtype):
        self.assertEqual(torch.ones(3, device=device, dtype=dtype).device.type, "xla")

instantiate_device_type_tests(TestSmall, globals())
if __name__ == "__main__":
    run_tests()
"""


@pytest.mark.slow
def test_developers_of_pytorch_name_the_file_of_the_device(tmp_path: Path) -> None:
    program = tmp_path / "test_small.py"
    program.write_text(ALONE)
    base = str(ROOT / "tools" / "pytorch_test_base.py")
    # Where CI is set, PyTorch's tests ask for xmlrunner, which only its own machines have.
    outside = {name: value for name, value in os.environ.items() if name != "CI"}
    environment = {**outside, "PYTHONPATH": str(ROOT), "TORCH_TEST_DEVICES": base}
    command = [sys.executable, str(program), "-v", "-k", "test_device_xla"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "test_device_xla_float32 (__main__.TestSmallXLA" in done.stderr and "Ran 2 tests" in done.stderr


@pytest.mark.slow
def test_each_test_has_an_end(tmp_path: Path) -> None:
    old = tmp_path / "torch" / "testing" / "_internal"
    (tmp_path / "test").mkdir()
    old.mkdir(parents=True)
    (tmp_path / "test" / "test_small.py").write_text(SUITE)
    (old / "common_cuda.py").write_text(OLD)
    command = [sys.executable, "-m", "tools.pytorch_tests", str(tmp_path / "test"), "test_small"]
    options = ["--results", str(tmp_path), "--patience", "8"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, env=environment, check=True)
    assert "test_small: 2 of 5 (40.0%)" in done.stdout
    tests, devices = json.loads((tmp_path / "test_small.json").read_text())
    assert len(tests) == 8
    assert {test.partition(".")[2]: ending["outcome"] for test, ending in devices["xla"].items()} == {
        "test_differs": "failed",
        "test_for_the_cpu": "skipped",
        "test_hangs": "too long",
        "test_is_made_for_the_cpu_alone": "skipped",
        "test_kills": "crashed",
        "test_sum_float32": "passed",
        "test_sum_int64": "passed",
    }
    assert devices["cpu"]["TestSmall.test_fails_on_the_cpu"]["outcome"] == "failed"
    assert "signal SIGSEGV" in devices["xla"]["TestSmall.test_kills"]["message"]
    assert devices["xla"]["TestSmall.test_differs"]["where"] == "test_small.py:20"
    subprocess.run([*command, *options, "--beside"], cwd=ROOT, capture_output=True, env=environment, check=True)
    beside = json.loads((tmp_path / "test_small.json").read_text())[1]["beside"]
    assert {ending["outcome"] for ending in beside.values()} == {"passed"} and len(beside) == 7


def test_page_tells_what_does_not_pass(tmp_path: Path) -> None:
    results = Results(tmp_path, "test_made_up")
    assert page([results]).endswith("## What does not pass\n")
    ending = {"message": "", "where": "", "seconds": 1.0, "megabytes": 0}
    results.tests = ["A.test_a", "A.test_b", "A.test_c", "A.test_d"]
    results.devices["cpu"] = {test: {**ending, "outcome": "passed"} for test in results.tests[:3]}
    results.devices["xla"] = {
        "A.test_a": {**ending, "outcome": "passed"},
        "A.test_b": {**ending, "outcome": "failed", "message": "Error: at 0x7f01 |\n  To execute this test, run it"},
        "A.test_c": {**ending, "outcome": "skipped", "message": "Only runs on cuda"},
    }
    assert summary(results) == ("test_made_up: 1 of 2 (50.0%); 1 passed, 1 failed, 1 skipped; 3 s of processor time")
    written = page([results])
    assert "| test_made_up | 4 | 3 | 3 | 1 | 2 | 1 | 50.0% |" in written
    assert written.endswith("\nNot looked into yet:\n\n- `test_made_up.A.test_b`: failed: Error: at 0x… \\|\n")
    results.keep()
    assert page([Results(tmp_path, "test_made_up")]) == written
    results.devices["beside"] = {"A.test_a": results.devices["xla"]["A.test_a"]}
    assert "\n1 of 1 tests that pass on the CPU pass there with `import torch_xla` before them too" in page([results])
