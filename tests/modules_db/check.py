"""One module class: in training and evaluation, in every memory format its input can have, forwards and backwards."""

import copy
import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter
from torch.utils import _pytree as pytree

import torch_xla
from tests.opinfo.check import Verdict, pattern
from tests.opinfo.compare import Differs, Measure, check_shape, check_values
from tests.opinfo.entries import Entry
from tests.opinfo.operands import Dtypes, Nudge
from tests.opinfo.truth import Truth
from torch_xla._engine.metrics.report import READS
from torch_xla.debug import metrics

from .entries import database

SEED = 7
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}

# The number of inputs of a module in training whose second derivatives are checked.
FEW = 2

# How exact they are, relative to the largest element.
SECOND = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 2e-1}

Results = dict[str, list[Any]]


@dataclass
class Case:
    """One module with one input on both devices."""

    where: str
    call: Callable[..., Results]  # of a device, a seed, and perhaps other dtypes and a nudge for the truth
    theirs: Results
    ours: Results | Exception | None = None


def check_module(entry: Entry, most_samples: int, few: int = FEW) -> Verdict:
    """Check up to `most_samples` inputs in each mode, and second derivatives of the first `few` of them.

    Inputs that the CPU cannot compute in this dtype are skipped.
    """
    info, dtype = database()[entry.operator], getattr(torch, entry.dtype)
    verdict = Verdict(entry)
    metrics.clear_all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [case for training in (True, False) for case in _cases(info, dtype, training, most_samples, few)]
        _run(cases)
        for case in cases:
            try:
                _compare(case)
            except Differs as error:
                verdict.failures.append((error.kind, f"{case.where}: {error}"))
    verdict.samples = len(cases)
    verdict.fallbacks = [name for name in metrics.executed_fallback_ops() if name not in READS]
    return verdict


def _cases(info: Any, dtype: torch.dtype, training: bool, most_samples: int, few: int) -> list[Case]:
    torch.manual_seed(0)
    inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
    cases = []
    for index, module_input in enumerate(list(inputs)[:most_samples]):
        torch.manual_seed(index)
        made = module_input.constructor_input
        module = info.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
        given = module_input.forward_input
        arguments = ((), {}) if given is None else (given.args, given.kwargs)
        try:
            if any(isinstance(p, UninitializedParameter) for p in module.parameters()):
                module(*arguments[0], **arguments[1])
            for name, some in _formats(arguments, module_input.desc).items():
                second = training and index < few and info.supports_gradgrad
                text = f"input {index} {module_input.desc} {'training' if training else 'evaluation'} {name}".strip()
                cases.append(_case(text, functools.partial(_call, module, some, name), second))
        except (NotImplementedError, RuntimeError) as error:
            if not _is_no_kernel(error):
                raise
    return cases


def _case(where: str, call: Callable[[bool], Any], second: bool) -> Case:
    try:
        return Case(where, call(second), call(second)("cpu", SEED))
    except (NotImplementedError, RuntimeError):
        if not second:
            raise
    return Case(where, call(False), call(False)("cpu", SEED))  # it has no second derivative


def _is_no_kernel(error: Exception) -> bool:
    """Whether the CPU has no kernel for this dtype or, in PyTorch's own words, for this order of memory."""
    return "not implemented for" in str(error) or "must be contiguous" in str(error)


def _formats(arguments: Any, description: str) -> dict[str, Any]:
    """The arguments, and again with batches of images or volumes in the order of channels last."""
    found = {"": arguments}
    if "no_batch_dim" not in description and any(
        isinstance(leaf, Tensor) and leaf.dim() in FORMATS for leaf in pytree.tree_leaves(arguments)
    ):
        found["channels last"] = pytree.tree_map_only(Tensor, _channels_last, arguments)
    return found


def _channels_last(tensor: Tensor) -> Tensor:
    if tensor.dim() not in FORMATS:
        return tensor
    return tensor.detach().contiguous(memory_format=FORMATS[tensor.dim()]).requires_grad_(tensor.requires_grad)


def _call(module: Any, arguments: Any, form: str, second: bool) -> Callable[..., Results]:
    def call(device: str, seed: int, dtypes: Dtypes | None = None, nudge: Nudge | None = None) -> Results:
        def converted(tensor: Tensor) -> Tensor:
            tensor = tensor if nudge is None else nudge(tensor)
            return tensor if dtypes is None else tensor.to(dtypes.get(tensor.dtype, tensor.dtype))

        def moved(leaf: Any) -> Any:
            if isinstance(leaf, torch.nn.Module):
                return copy.deepcopy(leaf).to(device)
            if not isinstance(leaf, Tensor):
                return leaf
            return converted(leaf.detach().clone().to(device)).requires_grad_(leaf.requires_grad)

        twin = copy.deepcopy(module).to(device)
        if dtypes is not None:
            twin = twin._apply(lambda tensor: converted(tensor.detach()))
        if form:
            for dim, memory_format in FORMATS.items():
                if any(p.dim() == dim for p in twin.parameters()):
                    twin = twin.to(memory_format=memory_format)
        args, kwargs = pytree.tree_map(moved, arguments)
        torch.manual_seed(seed)
        result = twin(*args, **kwargs)
        wanted = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.requires_grad]
        return _with_gradients(result, wanted, twin, second, nudge)

    return call


def _with_gradients(result: Any, wanted: list[Tensor], module: Any, second: bool, nudge: Nudge | None) -> Results:
    wanted = [*wanted, *(p for p in module.parameters() if p.requires_grad)]
    results: Results = {"result": pytree.tree_leaves(result), "buffer": [b.clone() for b in module.buffers()]}
    outputs = [t for t in results["result"] if isinstance(t, Tensor) and t.requires_grad]
    if not outputs or not wanted:
        return results
    given = [pattern(t, nudge) for t in outputs]
    firsts = torch.autograd.grad(outputs, wanted, given, allow_unused=True, create_graph=second)
    results["gradient"] = list(firsts)
    rising = [g for g in firsts if g is not None and g.requires_grad]
    if second and rising:
        given = [pattern(t, nudge) for t in rising]
        results["second gradient"] = list(torch.autograd.grad(rising, wanted, given, allow_unused=True))
    return results


def _run(cases: list[Case]) -> None:
    """All calls on the device in one program; one by one where that fails."""
    for sync in (lambda: None, lambda: torch_xla.sync(wait=True)):
        for case in cases:
            try:
                case.ours = case.call("xla", SEED)
                sync()
            except Exception as error:
                case.ours = error
        try:
            torch_xla.sync(wait=True)
            return
        except Exception:
            continue


def _compare(case: Case) -> None:
    if isinstance(case.ours, Exception):
        raise Differs("raises", f"{type(case.ours).__name__}: {str(case.ours)[:500]}")
    assert case.ours is not None
    dtypes = {leaf.dtype for leaf in case.theirs["result"] if isinstance(leaf, Tensor) and leaf.is_floating_point()}
    truth = Truth(functools.partial(case.call, "cpu", SEED), next(iter(dtypes), torch.float32))
    random = _differ(case.theirs, case.call("cpu", SEED + 1))
    for name, theirs in case.theirs.items():
        ours = case.ours.get(name, [])
        if len(ours) != len(theirs):
            raise Differs("form", f"{name}: {len(ours)} results, not {len(theirs)}")
        for index, (mine, yours) in enumerate(zip(ours, theirs, strict=True)):
            where = f"{name} {index}"
            _check_form(mine, yours, where, name)
            if not isinstance(yours, Tensor) or random:
                continue
            if name == "second gradient":
                _check_norm(mine, yours, where)
            else:
                check_values(mine, yours, Measure.of(truth, name, index, False), where)


def _check_norm(ours: Tensor, theirs: Tensor, where: str) -> None:
    # Second derivatives add up what nearly cancels: they are as exact as their largest elements.
    dtype = theirs.dtype
    ours, theirs = ours.cpu().double(), theirs.double()
    if not theirs.numel() or torch.equal(ours, theirs):
        return
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    distance = torch.where(same, 0, (ours - theirs).abs()).max()
    largest = theirs.nan_to_num(0, 0, 0).abs().max()
    if not distance <= SECOND[dtype] * largest.clamp_min(1):
        raise Differs("value", f"{where}: differs by {distance:.3g} where the largest is {largest:.3g}")


def _check_form(ours: Any, theirs: Any, where: str, name: str) -> None:
    if isinstance(ours, Tensor) and ours.device.type != "xla":
        raise Differs("form", f"{where} is on {ours.device}")
    try:
        check_shape(ours, theirs, where)
    except Differs as error:
        # A gradient takes the order that its formula happens to leave on a device; a leaf orders its own. Volumes in
        # half precision have convolutions that keep channels last on some CPUs only.
        half = isinstance(theirs, Tensor) and theirs.dtype is torch.float16 and theirs.dim() == 5
        if error.kind != "strides" or not (half or "gradient" in name):
            raise


def _differ(one: Results, other: Results) -> bool:
    """Whether another seed gave other results: then only their form can be compared."""
    pairs = [pair for name in one for pair in zip(one[name], other.get(name, []), strict=False)]
    return any(
        isinstance(a, Tensor) and not torch.allclose(a.detach(), b.detach(), rtol=1e-3, atol=1e-4, equal_nan=True)
        for a, b in pairs
    )
