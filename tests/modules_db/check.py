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
from tests.opinfo.check import Verdict
from tests.opinfo.compare import Differs, check_shape, check_values
from tests.opinfo.entries import Entry
from torch_xla._engine.metrics.report import READS
from torch_xla.debug import metrics

from .entries import database

SEED = 7
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}

# Second derivatives are checked of so many inputs of a module in training.
FEW = 2

# How exact they are, relative to the largest element.
SECOND = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 2e-1}

Results = dict[str, list[Any]]


@dataclass
class Case:
    """One module with one input on both devices."""

    where: str
    call: Callable[[str, int, torch.dtype | None], Results]
    theirs: Results
    ours: Results | Exception | None = None


def check_module(entry: Entry, most_samples: int, few: int = FEW) -> Verdict:
    """Checks up to `most_samples` inputs in each mode, and second derivatives of the first `few` of them.

    What the CPU cannot compute in this dtype is passed over.
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
        return Case(where, call(second), call(second)("cpu", SEED, None))
    except (NotImplementedError, RuntimeError):
        if not second:
            raise
    return Case(where, call(False), call(False)("cpu", SEED, None))  # it has no second derivative


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


def _call(module: Any, arguments: Any, form: str, second: bool) -> Callable[[str, int, torch.dtype | None], Results]:
    def call(device: str, seed: int, dtype: torch.dtype | None) -> Results:
        def moved(leaf: Any) -> Any:
            if isinstance(leaf, torch.nn.Module):
                return copy.deepcopy(leaf).to(device)
            if not isinstance(leaf, Tensor):
                return leaf
            wide = dtype if dtype is not None and leaf.is_floating_point() else leaf.dtype
            return leaf.detach().clone().to(device, wide).requires_grad_(leaf.requires_grad)

        twin = copy.deepcopy(module).to(device)
        twin = twin if dtype is None else twin.to(dtype)
        if form:
            for dim, memory_format in FORMATS.items():
                if any(p.dim() == dim for p in twin.parameters()):
                    twin = twin.to(memory_format=memory_format)
        args, kwargs = pytree.tree_map(moved, arguments)
        torch.manual_seed(seed)
        result = twin(*args, **kwargs)
        wanted = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.requires_grad]
        return _with_gradients(result, wanted, twin, second)

    return call


def _with_gradients(result: Any, wanted: list[Tensor], module: Any, second: bool) -> Results:
    wanted = [*wanted, *(p for p in module.parameters() if p.requires_grad)]
    results: Results = {"result": pytree.tree_leaves(result), "buffer": [b.clone() for b in module.buffers()]}
    outputs = [t for t in results["result"] if isinstance(t, Tensor) and t.requires_grad]
    if not outputs or not wanted:
        return results
    firsts = torch.autograd.grad(outputs, wanted, _patterns(outputs), allow_unused=True, create_graph=second)
    results["gradient"] = list(firsts)
    rising = [g for g in firsts if g is not None and g.requires_grad]
    if second and rising:
        results["second gradient"] = list(torch.autograd.grad(rising, wanted, _patterns(rising), allow_unused=True))
    return results


def _patterns(tensors: list[Tensor]) -> list[Tensor]:
    """Gradients to start from: not all ones, the same on every device."""
    return [
        torch.linspace(0.5, 1.5, t.numel(), dtype=torch.float64).reshape(t.shape).to(t.dtype).to(t.device)
        for t in tensors
    ]


def _run(cases: list[Case]) -> None:
    """All calls on the device in one program; one by one where that fails."""
    for sync in (lambda: None, lambda: torch_xla.sync(wait=True)):
        for case in cases:
            try:
                case.ours = case.call("xla", SEED, None)
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
    truth: list[Results] = []

    def exact(name: str, index: int) -> Tensor | None:
        if not truth:
            truth.append(case.call("cpu", SEED, torch.float64))
        return truth[0][name][index]  # type: ignore[no-any-return]

    random = _differ(case.theirs, case.call("cpu", SEED + 1, None))
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
                check_values(mine, yours, functools.partial(exact, name, index), where)


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
