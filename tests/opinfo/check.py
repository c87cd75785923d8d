"""One entry of the database: its samples with gradients, its in-place and `out=` forms, and its mistaken calls."""

import functools
import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import torch_xla
from torch_xla._engine.errors import NoLowering
from torch_xla._engine.metrics.report import READS
from torch_xla.debug import metrics

from .compare import Differs, Measure, check_choice, check_shape, check_values, leaves
from .entries import DTYPES, UNINITIALISED, Entry, database, pointwise
from .exact import EXACT
from .operands import WIDE, Dtypes, Nudge, moved
from .truth import Results, Truth

# The number of samples of an entry for second derivatives, in-place and `out=` forms.
FEW = 3
SEED = 7
# An operator is random if one of this number of other seeds gives another result: few seeds may agree by chance. Six
# draws of a coin that shows heads one time in four agree one time in five.
SEEDS = 30
# They approximate by random projections, which the devices must share if they are to agree.
PROJECTING = {"svd_lowrank", "pca_lowrank"}
# PyTorch's message for an operator that cannot be differentiated (again).
NO_DERIVATIVE = "derivative for aten::"
# Results as the operator returns them, before the database takes out what is not unique.
RAW = ("result", "written")
# The arguments after the call: an operator may write to some that its schema does not declare.
ARGUMENTS = "argument after the call"


@dataclass
class Verdict:
    """The result of one entry. `failures` are pairs (kind, text); without failures, it passes."""

    entry: Entry
    samples: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def status(self) -> str:
        return self.failures[0][0] if self.failures else "passes"


@dataclass
class Outcome:
    """The results of one call by what they are (`result`, `gradient` …), or what it raised."""

    results: Results = field(default_factory=dict)
    error: Exception | None = None


@dataclass
class Case:
    """One call on both devices."""

    where: str
    call: Callable[..., Outcome]  # of a device and perhaps a seed
    theirs: Outcome
    truth: Truth | None = None
    arguments: Any = None
    ours: Outcome = field(default_factory=Outcome)
    is_on_xla: bool = True  # a call without tensors that names no device makes its results on the host


def check_entry(entry: Entry, most_samples: int) -> Verdict:
    """Checks up to `most_samples` samples of each kind, spread over all that the database has."""
    op, dtype = database()[entry.operator], DTYPES[entry.dtype]
    verdict = Verdict(entry)
    metrics.clear_all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = _cases(op, dtype, most_samples)
        _run(cases)
        for case in cases:
            try:
                _compare(op, case)
            except Differs as error:
                verdict.failures.append((error.kind, f"{case.where}: {error}"))
        verdict.failures += _mistaken(op)
    verdict.samples = sum(case.theirs.error is None for case in cases)
    # Reading a number from the device is counted beside the operators without a rule.
    verdict.fallbacks = [name for name in metrics.executed_fallback_ops() if name not in READS]
    return verdict


def spread(samples: list[Any], most: int) -> list[tuple[int, Any]]:
    """At most so many samples, with their places, from the first to the last."""
    count = len(samples)
    if count <= most:
        return list(enumerate(samples))
    return [(i, samples[i]) for i in sorted({round(k * (count - 1) / max(most - 1, 1)) for k in range(most)})]


def _cases(op: Any, dtype: torch.dtype, most: int) -> list[Case]:
    differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    torch.manual_seed(0)
    samples = spread(list(op.sample_inputs("cpu", dtype, requires_grad=differentiable)), most)
    cases: list[Case] = []
    for number, (index, sample) in enumerate(samples):
        few = number < FEW
        second = few and differentiable and op.supports_gradgrad
        arguments = (sample.input, sample.args, sample.kwargs)

        def forward(
            where: str, seed: int = SEED, arguments: Any = arguments, sample: Any = sample, second: bool = second
        ) -> Outcome:
            return _attempt(lambda: _forward(op, moved(arguments, where), sample.output_process_fn_grad, second), seed)

        def truth(
            dtypes: Dtypes,
            nudge: Nudge | None,
            arguments: Any = arguments,
            sample: Any = sample,
            second: bool = second,
        ) -> Results:
            near = moved(arguments, "cpu", dtypes, nudge)
            torch.manual_seed(SEED)
            function = EXACT.get(op.name, op.op) if dtypes is WIDE else op.op
            return _forward(op, near, sample.output_process_fn_grad, second, nudge, function)

        theirs = forward("cpu")
        if second and (isinstance(theirs.error, NotImplementedError) or NO_DERIVATIVE in str(theirs.error)):
            # Some of the CPU's kernels for second derivatives lack a dtype, and its fused attention has none at all.
            forward = functools.partial(forward, second=False)
            truth, theirs = functools.partial(truth, second=False), forward("cpu")
        text = f"sample {index} {sample.summary()}"[:600]
        is_on_xla = _names_a_device(arguments)
        wide = Truth(truth, dtype)
        cases.append(Case(text, forward, theirs, wide, arguments, is_on_xla=is_on_xla))
        if few and theirs.error is None:
            cases += _forms(op, arguments, sample.output_process_fn_grad, text, is_on_xla, wide)
    return cases


def _names_a_device(arguments: Any) -> bool:
    return any(isinstance(leaf, Tensor | torch.device) or leaf == "cpu" for leaf in leaves(arguments))


def _forms(op: Any, arguments: Any, process: Any, text: str, is_on_xla: bool, truth: Truth) -> list[Case]:
    """The in-place form and `out=`."""
    forms: list[tuple[str, Callable[[Any], Any]]] = []
    if op.inplace_variant is not None and isinstance(arguments[0], Tensor | list):
        forms.append(("in place", lambda a: _in_place(op, a)))
    if op.supports_out:
        forms.append(("out=", lambda a: _out(op, a)))
    cases = []
    for name, form in forms:

        def call(where: str, seed: int = SEED, form: Callable[[Any], Any] = form) -> Outcome:
            def run() -> Results:
                with torch.no_grad():
                    operands = _detached(moved(arguments, where))
                    returned, written = form(operands)
                    # Where only the processed result is unique, such as up to a sign, the raw ones are not compared.
                    return {
                        "result": list(leaves(returned)),
                        "processed result": list(leaves(process(returned))),
                        "written": list(leaves(written)),
                        ARGUMENTS: after(operands),
                    }

            return _attempt(run, seed)

        theirs = call("cpu")
        # An empty `out=` is resized: where a kernel of the CPU fails to, there is nothing to compare with.
        if name != "out=" or theirs.error is None:
            cases.append(Case(f"{name}, {text}", call, theirs, truth, arguments, is_on_xla=is_on_xla))
    return cases


def _detached(value: Any) -> Any:
    return torch.utils._pytree.tree_map_only(Tensor, lambda t: t.detach(), value)


def _in_place(op: Any, arguments: Any) -> Any:
    tensor, args, kwargs = arguments
    target: Any = [t.clone() for t in tensor] if isinstance(tensor, list) else tensor.clone()
    result = op.inplace_variant(target, *args, **kwargs)
    return result, target, [t._version for t in leaves(target)]


def _out(op: Any, arguments: Any) -> Any:
    tensor, args, kwargs = arguments
    expected = op.op(tensor, *args, **kwargs)
    if isinstance(expected, Tensor):
        out: Any = torch.empty(0, dtype=expected.dtype, device=expected.device)
    elif isinstance(expected, tuple) and all(isinstance(e, Tensor) for e in expected):
        out = tuple(torch.empty(0, dtype=e.dtype, device=e.device) for e in expected)
    else:
        return expected, ()
    return op.op(tensor, *args, **kwargs, out=out), out


def _forward(
    op: Any,
    arguments: Any,
    process: Any,
    second: bool,
    nudge: Nudge | None = None,
    function: Callable[..., Any] | None = None,
) -> Results:
    function = function or op.op
    if op.name in PROJECTING:
        with mock.patch("torch.randn", _drawn_on_the_host):
            return _forward_once(function, arguments, process, second, nudge)
    return _forward_once(function, arguments, process, second, nudge)


def _drawn_on_the_host(*size: Any, device: Any = None, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty(*size).normal_().to(device=device, dtype=dtype)


def _forward_once(
    function: Callable[..., Any], arguments: Any, process: Any, second: bool, nudge: Nudge | None
) -> Results:
    tensor, args, kwargs = arguments
    wanted = [t for t in leaves(arguments) if isinstance(t, Tensor) and t.requires_grad]
    if not wanted:
        with torch.no_grad():
            raw = function(tensor, *args, **kwargs)
    else:
        raw = function(tensor, *args, **kwargs)
    processed = process(raw)
    results = {"result": list(leaves(raw)), "processed result": list(leaves(processed)), ARGUMENTS: after(arguments)}
    outputs = [t for t in results["processed result"] if isinstance(t, Tensor) and t.requires_grad]
    if not wanted or not outputs:
        return results
    given = [pattern(t, nudge) for t in outputs]
    firsts = torch.autograd.grad(outputs, wanted, given, allow_unused=True, create_graph=second)
    results["gradient"] = list(firsts)
    if second:
        outputs = [g for g in firsts if g is not None and g.requires_grad]
        if outputs:
            given = [pattern(g, nudge) for g in outputs]
            results["second gradient"] = list(torch.autograd.grad(outputs, wanted, given, allow_unused=True))
    return results


def pattern(like: Tensor, nudge: Nudge | None) -> Tensor:
    """A gradient to start from: not all ones, the same on every device and, without rounding, in every dtype."""
    numbers = (0.5 + (torch.arange(like.numel()) % 65).double() / 64).reshape(like.shape)
    numbers = numbers + 0.25j * numbers if like.is_complex() else numbers
    return (numbers if nudge is None else nudge(numbers)).to(like.dtype).to(like.device)


def after(arguments: Any) -> list[Tensor]:
    """The tensors among the arguments of a call that was made, apart from those without memory of their own."""
    tensors = [leaf for leaf in leaves(arguments) if isinstance(leaf, Tensor)]
    return [t.detach() for t in tensors if t.layout is torch.strided and not t.is_meta]


def _attempt(call: Callable[[], Results], seed: int = SEED) -> Outcome:
    torch.manual_seed(seed)
    try:
        return Outcome(call())
    except Exception as error:
        return Outcome(error=error)


def _run(cases: list[Case]) -> None:
    """All calls on the device in one program; one by one where that fails."""
    for case in cases:
        case.ours = case.call("xla")
    try:
        torch_xla.sync(wait=True)
    except Exception:
        for case in cases:
            case.ours = case.call("xla")
            try:
                torch_xla.sync(wait=True)
            except Exception as error:
                case.ours = Outcome(error=error)


def _compare(op: Any, case: Case) -> None:
    if case.theirs.error is not None:
        _compare_errors(case.theirs.error, case.ours.error)
        return
    if case.ours.error is not None:
        error = case.ours.error
        if _is_refused_by_decision(error, (case.arguments, case.theirs.results)):
            return
        raise Differs("raises", f"{type(error).__name__}: {str(error)[:500]}")
    unique = _same_leaves(case.theirs.results)
    # Gradients go where the elements come from, and an unstable sort may take equal ones in any order.
    chosen_along, same = _chosen_along(op, case.arguments), not (op.name == "msort" and _has_equals(case.arguments[0]))
    for name, theirs in case.theirs.results.items():
        ours = case.ours.results.get(name, [])
        if len(ours) != len(theirs):
            raise Differs("form", f"{name}: {len(ours)} results, not {len(theirs)}")
        for index, (mine, yours) in enumerate(zip(ours, theirs, strict=True)):
            where = f"{name} {index}"
            check_shape(mine, yours, where)
            if isinstance(mine, Tensor) and mine.device.type != "xla" and case.is_on_xla:
                raise Differs("form", f"{where} is on {mine.device}")
            if not isinstance(yours, Tensor) or op.name in UNINITIALISED or (name in RAW and not unique):
                continue
            if (
                chosen_along is not None
                and "gradient" not in name
                and name != ARGUMENTS
                and (op.name == "argsort" or index % 2)
            ):
                same = check_choice(mine, yours, case.arguments[0], chosen_along, where) and same
                continue
            if "gradient" in name and not same:
                continue
            try:
                measure = case.truth and Measure.of(case.truth, name, index, op.name in pointwise())
                check_values(mine, yours, measure, where)
            except Differs:
                if not _is_random(case):
                    raise


def _chosen_along(op: Any, arguments: Any) -> int | None:
    """The dimension along which an unstable sort or a selection chooses; `None` for everything else."""
    _, args, kwargs = arguments
    position = {"argsort": 0, "kthvalue": 1, "mode": 0, "sort": 0, "topk": 1}.get(op.name)
    if position is None or kwargs.get("stable"):
        return None
    return int(kwargs.get("dim", args[position] if len(args) > position else -1))


def _has_equals(tensor: Tensor) -> bool:
    """Whether a column holds an element twice."""
    return tensor.dim() > 0 and bool((tensor.detach().sort(0).values.diff(dim=0) == 0).any())


def _is_refused_by_decision(error: Exception, operands_and_results: Any) -> bool:
    """Whether the call needs sparse tensors, which XLA devices lack, and the error says what to do."""
    tensors = [leaf for leaf in leaves(operands_and_results) if isinstance(leaf, Tensor)]
    return isinstance(error, NoLowering) and any(tensor.layout is not torch.strided for tensor in tensors)


def _same_leaves(results: dict[str, list[Any]]) -> bool:
    pairs = itertools.zip_longest(results["result"], results["processed result"])
    return all(one is other for one, other in pairs)


def _is_random(case: Case) -> bool:
    """Whether the same call gives something else after another seed."""
    return any(_differ(case.theirs, case.call("cpu", SEED + 1 + number)) for number in range(SEEDS))


def _differ(one: Outcome, other: Outcome) -> bool:
    for name, results in one.results.items():
        for mine, yours in zip(results, other.results.get(name, []), strict=False):
            if isinstance(mine, Tensor) and mine.dtype.is_floating_point and mine.layout is torch.strided:
                if not torch.allclose(mine, yours, rtol=1e-3, atol=1e-4, equal_nan=True):
                    return True
            elif isinstance(mine, Tensor) and mine.layout is torch.strided and not torch.equal(mine, yours):
                return True
    return False


def _compare_errors(theirs: Exception, ours: Exception | None) -> None:
    if ours is None:
        if isinstance(theirs, NotImplementedError) and "not implemented for" in str(theirs):
            return  # the CPU has no kernel for the dtype, and we have
        raise Differs("accepts", f"the CPU raises {type(theirs).__name__}: {str(theirs)[:300]}")
    if not isinstance(ours, type(theirs)):
        raise Differs("error type", f"{type(ours).__name__}: {str(ours)[:200]}; not {type(theirs).__name__}: {theirs}")


def _mistaken(op: Any) -> list[tuple[str, str]]:
    """The calls that PyTorch's database expects to raise."""
    failures = []
    if op.error_inputs_func is None:
        return []
    torch.manual_seed(0)
    for index, mistake in enumerate(op.error_inputs("cpu")):
        sample = mistake.sample_input
        arguments = (sample.input, sample.args, sample.kwargs)

        def call(where: str, arguments: Any = arguments) -> Outcome:
            def run() -> Results:
                tensor, args, kwargs = moved(arguments, where)
                result = op.op(tensor, *args, **kwargs)
                return {"result": [t.cpu() if isinstance(t, Tensor) else t for t in leaves(result)]}

            return _attempt(run)

        theirs = call("cpu")
        if theirs.error is None:
            continue
        try:
            _compare_errors(theirs.error, call("xla").error)
        except Differs as error:
            failures.append((error.kind, f"mistaken call {index} {sample.summary()[:300]}: {error}"))
    return failures
