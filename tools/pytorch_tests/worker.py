"""Run the tests of one file on one device, in one process: a line of input for each test, a line of output.

    python worker.py FOLDER FILE DEVICE

DEVICE is `cpu`, `xla`, or `beside`: the CPU with this package imported. The first output is the names of the tests, the
same for every device. Then each line of input is such a name, and each line of output the result of this test. Only
these answers go to standard output.
"""

import ast
import faulthandler
import importlib
import importlib.machinery
import importlib.util
import json
import os
import resource
import sys
import time
import traceback
import types
import unittest
import warnings
from pathlib import Path

OURS = "torch.testing._internal"


class Ending(unittest.TestResult):
    """How one test ended."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.ending = {"outcome": "passed", "message": "", "where": ""}

    def addFailure(self, test: object, err: tuple) -> None:  # noqa: N802  unittest's names
        self._failed(err)

    def addError(self, test: object, err: tuple) -> None:  # noqa: N802
        self._failed(err)

    def addSubTest(self, test: object, subtest: object, err: tuple | None) -> None:  # noqa: N802
        if err is not None:
            self._failed(err)

    def addSkip(self, test: object, reason: str) -> None:  # noqa: N802
        self._end("skipped", reason)

    def addExpectedFailure(self, test: object, err: object) -> None:  # noqa: N802
        self._end("failed as expected", "")

    def addUnexpectedSuccess(self, test: object) -> None:  # noqa: N802
        self._end("failed", "passed, but was expected to fail")

    def _failed(self, err: tuple) -> None:
        kind, error, trace = err
        frames = [f for f in traceback.extract_tb(trace) if Path(f.filename).is_relative_to(self.folder)]
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        self._end("failed", f"{kind.__name__}: {error}"[:2000], where)
        traceback.print_exception(kind, error, trace, file=sys.stderr)

    def _end(self, outcome: str, message: str, where: str = "") -> None:
        if self.ending["outcome"] != "failed":  # of several ends, the first failure
            self.ending = {"outcome": outcome, "message": message, "where": where}


def lend_old_names(path: Path) -> None:
    """Gives PyTorch's installed test support what the file imports from it and a later release has dropped.

    The definitions are those of the sources that the file is from.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(OURS)):
            continue
        installed = importlib.import_module(node.module)
        missing = [alias.name for alias in node.names if alias.name != "*" and not hasattr(installed, alias.name)]
        if missing:
            old = _old_module(path.parents[1], node.module)
            for name in missing:
                setattr(installed, name, getattr(old, name))


class _OwnSuper(ast.NodeTransformer):
    """Writes `super(self.__class__, self)` as `super()`.

    PyTorch's classes for a device are subclasses of those in the file since 2.7, so that the former calls itself.
    """

    def visit_Call(self, node: ast.Call) -> ast.AST:  # noqa: N802  ast's name
        self.generic_visit(node)
        return ast.parse("super()", mode="eval").body if ast.unparse(node) == "super(self.__class__, self)" else node


class _Source(importlib.machinery.SourceFileLoader):
    """Loads a file of tests as a later PyTorch than its own can run it."""

    def source_to_code(self, data, path, **options):  # type: ignore[no-untyped-def]
        tree = ast.fix_missing_locations(_OwnSuper().visit(ast.parse(data)))
        return super().source_to_code(tree, path, **options)


def load(path: Path) -> types.ModuleType:
    """Imports a file of tests."""
    lend_old_names(path)
    spec = importlib.util.spec_from_loader(path.stem, _Source(path.stem, str(path)))
    assert spec and spec.loader
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _old_module(root: Path, name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"old.{name}", root / (name.replace(".", "/") + ".py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tests_of(module: types.ModuleType, device: str) -> dict[str, unittest.TestCase]:
    """The tests that the file has made for the device, by names that do not say which."""
    found = {}
    for name, case in sorted(vars(module).items()):
        if not (isinstance(case, type) and issubclass(case, unittest.TestCase) and hasattr(case, "device_type")):
            continue
        for method in unittest.defaultTestLoader.getTestCaseNames(case):
            head, _, tail = method.rpartition(f"_{device}")
            if head:
                found[f"{name.removesuffix('PRIVATEUSE1').removesuffix(device.upper())}.{head}{tail}"] = case(method)
    return found


def main() -> None:
    folder, name, where = Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3]
    device = "cpu" if where == "beside" else where
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tests print is no answer
    faulthandler.enable()
    os.environ["PYTORCH_TESTING_DEVICE_ONLY_FOR"] = device
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    sys.argv = [f"{name}.py"]
    import torch

    if where != "cpu":
        import torch_xla  # noqa: F401  the same tests without it are the measure
    torch.set_num_threads(1)
    warnings.simplefilter("default")
    tests = tests_of(load(folder / f"{name}.py"), device)
    print(json.dumps(list(tests)), file=answers, flush=True)
    for line in sys.stdin:
        ending = Ending(folder)
        started = time.process_time()
        unittest.TestSuite([tests[line.strip()]]).run(ending)
        seconds = round(time.process_time() - started, 3)
        megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps({**ending.ending, "seconds": seconds, "megabytes": megabytes}), file=answers, flush=True)


if __name__ == "__main__":
    main()
