"""The engine without hooks: the modules of the hot path without statements that count, time or report.

`benchmarks.diagnostics` compares with it. `install()` must be called before `torch_xla` is imported; from then on these
modules are compiled from their source without

- calls of functions of `metrics/` and of its objects, as `events.emit(...)`, and `….value += 1`;
- tests for listeners and observers, which become False, and the code for them;
- `with metrics.timed(...)`: its block stays;
- code that only those statements needed: readings of the clock, local variables, functions that became empty.

`counted()` returns the remaining counts, so that a comparison can verify that there are none.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

ENGINE = "torch_xla._engine."
MODULES = (
    "ir.tape", "step.executor", "step.sync", "step.end_of_step", "tensor.upload", "transfer.host_copies",
    "dispatch.recording_kernel", "dispatch.memory_ops",
)  # fmt: skip

# The imports of these modules from `metrics/`; the types (`Cause`, `Line`) are no hooks, they describe arguments.
ROOMS = ("metrics", "metrics.counters", "metrics.samples", "metrics.events", "metrics.user_lines")
# Counters and lines that live in other rooms.
OTHERS = {"live_counters": "tensor", "note_line": "tensor.op_user_lines"}
FLAGS = ("watched", "guarded", "closely")
# Kept for the metrics alone: when recording began, and the user's line that made a value.
ATTRIBUTES = ("started", "line")
# Calls that are as good as no call if nothing reads what they give.
PURE = ("time.perf_counter", "time.perf_counter_ns", "perf_counter", "perf_counter_ns", "int", "len")

# Frequent events in the measured calls: one of these would show a remaining hook.
COUNTERS = ("ExecuteComputation", "CachedCompile", "MarkStep", "SyncTensorsToData", "xla::add")
COUNTED = (*COUNTERS, "CreateDataHandles", "aten::_local_scalar_dense")
SAMPLED = (
    "LazyTracing", "TensorsGraphSize", "DeviceLockWait", "ExecuteTime", "TransferToDeviceTime", "OutboundData",
    "TransferToDeviceTransformTime", "TransferFromDeviceTime", "InboundData",
)  # fmt: skip


def install() -> None:
    """Makes the next import of the engine one without hooks."""
    if ENGINE.rstrip(".") in sys.modules:
        raise RuntimeError("torch_xla is imported already: too late to take its hooks out")
    sys.meta_path.insert(0, _Finder())


def counted() -> list[str]:
    """The names of counters and metrics of the hot path that counted something."""
    import torch_xla.debug.metrics as met  # not before `install()`

    found = [name for name in COUNTED if met.counter_value(name)]
    return found + [name for name in SAMPLED if met.metric_data(name)]


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.removeprefix(ENGINE) not in MODULES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None and spec.origin is not None
        spec.loader = _Loader(fullname, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return compile(without_hooks(self.get_data(path).decode()), path, "exec", dont_inherit=True)


def without_hooks(source: str) -> ast.Module:
    """The module without its hooks."""
    tree = ast.parse(source)
    hooks = set[str]().union(*map(_made_by_metrics, tree.body))
    text = ""
    while text != (text := ast.unparse(tree)):
        hooks.update(
            each.name for each in tree.body if isinstance(each, ast.FunctionDef) and all(map(_is_empty, each.body))
        )
        tree = _Remover(hooks).visit(tree)
        for each in ast.walk(tree):
            if isinstance(each, ast.FunctionDef):
                _forget_unread(each, hooks)
    return ast.fix_missing_locations(tree)


def _made_by_metrics(statement: ast.stmt) -> set[str]:
    """The names of hooks that a statement of the module brings: imported ones, and counters and metrics made here."""
    if isinstance(statement, ast.ImportFrom):
        room = statement.module or ""
        names = [(alias.name, alias.asname or alias.name) for alias in statement.names]
        ours = {new for old, new in names if not old[0].isupper() and (room in ROOMS or old == "metrics")}
        return ours | {new for old, new in names if old in OTHERS}
    if isinstance(statement, ast.Assign) and ast.unparse(statement.value).startswith(("metrics.", "map(metrics.")):
        return {each.id for target in statement.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return set()


def _is_empty(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _names(node: ast.AST, kind: type[ast.expr_context] = ast.Load) -> Iterator[str]:
    return (each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, kind))


class _Remover(ast.NodeTransformer):
    """Takes out statements with hooks within functions; the module's own statements stay, and so does what returns."""

    def __init__(self, hooks: set[str]) -> None:
        self.hooks = hooks

    def visit_Module(self, node: ast.Module) -> ast.Module:
        for each in node.body:
            if isinstance(each, ast.FunctionDef | ast.ClassDef):
                self.visit(each)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.body = self._block(node.body) or [ast.Pass()]
        return node

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in body:
            found: Any = self.visit(statement)
            made += found if isinstance(found, list) else [found] if found is not None else []
            if made and isinstance(made[-1], ast.Return | ast.Raise):
                break
        return made

    def _is_hook(self, node: ast.AST) -> bool:
        return not self.hooks.isdisjoint(_names(node))

    def _simple(self, node: ast.stmt) -> Any:
        return None if self._is_hook(node) else node

    visit_Expr = _simple

    def visit_Assign(self, node: ast.Assign) -> Any:
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Attribute) and target.attr in ATTRIBUTES:
            return None
        if len(node.targets) == 1 and isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=False))
            independent = set(_names(target, ast.Store)).isdisjoint(_names(value))
            if independent and len(pairs) == len(target.elts) == len(value.elts):
                return [self._copied(one, ast.Assign([to], one)) for to, one in pairs]
        return node  # that of a local variable goes when nothing reads it any more

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        if isinstance(node.target, ast.Attribute) and node.target.attr in (*ATTRIBUTES, "value"):  # of a counter
            return None
        return self._simple(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        module = node.value.id if isinstance(node.value, ast.Name) else ""
        if module == "observers":
            return self._copied(node, ast.Constant(None))
        return self._copied(node, ast.Constant(False)) if module == "events" and node.attr in FLAGS else node

    def visit_If(self, node: ast.If) -> Any:
        test = _folded(self.visit(node.test), self.hooks)
        if isinstance(test, ast.Constant):
            return self._block(node.body if test.value else node.orelse)
        body, orelse = self._block(node.body), self._block(node.orelse)
        if not body and not orelse:
            return None  # what is tested has no effects
        if not body:
            body, orelse, test = orelse, [], ast.UnaryOp(ast.Not(), test)
        return self._copied(node, ast.If(test, body, orelse))

    def visit_With(self, node: ast.With) -> Any:
        body = self._block(node.body)
        if all(self._is_hook(item) for item in node.items):
            return body
        node.body = body or [ast.Pass()]
        return node

    def visit_For(self, node: ast.For) -> Any:
        node.body = self._block(node.body)
        return node if node.body else None

    def visit_While(self, node: ast.While) -> ast.While:
        node.body = self._block(node.body) or [ast.Pass()]
        return node

    def visit_Try(self, node: ast.Try) -> ast.Try:
        node.body = self._block(node.body) or [ast.Pass()]
        node.finalbody = self._block(node.finalbody)
        for handler in node.handlers:
            handler.body = self._block(handler.body) or [ast.Pass()]
        return node

    @staticmethod
    def _copied(old: ast.AST, new: Any) -> Any:
        return ast.copy_location(new, old)


def _folded(test: ast.expr, hooks: set[str]) -> ast.expr:
    """Simplify the test, with no listener and no hook."""
    if isinstance(test, ast.BoolOp):
        ends = isinstance(test.op, ast.Or)  # the value that decides the whole
        left = []
        for part in (_folded(each, hooks) for each in test.values):
            if not isinstance(part, ast.Constant):
                left.append(part)
            elif bool(part.value) is ends:
                return ast.Constant(ends)
        if not left:
            return ast.Constant(not ends)
        return left[0] if len(left) == 1 else ast.copy_location(ast.BoolOp(test.op, left), test)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _folded(test.operand, hooks)
        if isinstance(inner, ast.Constant):
            return ast.Constant(not inner.value)
        return ast.copy_location(ast.UnaryOp(test.op, inner), test)
    is_observer = isinstance(test, ast.Compare) and isinstance(test.left, ast.Constant) and test.left.value is None
    if is_observer:
        return ast.Constant(ast.unparse(test).endswith(" is None"))
    return test


def _forget_unread(function: ast.FunctionDef, hooks: set[str]) -> None:
    """Takes out local variables that nothing reads, if they come from hooks, from clocks or from no call at all."""
    read = set(_names(function))
    for each in ast.walk(function):
        if isinstance(each, ast.AugAssign):
            read.update(_names(each.target, ast.Store))
    shared = {name for each in ast.walk(function) if isinstance(each, ast.Global | ast.Nonlocal) for name in each.names}

    class Forget(ast.NodeTransformer):
        def visit_Assign(self, node: ast.Assign) -> ast.Assign | None:
            names = set(_names(node.targets[0], ast.Store)) if isinstance(node.targets[0], ast.Name) else set()
            calls = [ast.unparse(each.func) for each in ast.walk(node.value) if isinstance(each, ast.Call)]
            free = set(calls) <= set(PURE) or not hooks.isdisjoint(_names(node.value))
            return None if names and names.isdisjoint(read | shared) and free else node

    Forget().visit(function)
