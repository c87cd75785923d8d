"""Report what a step needs, before it runs."""

from collections.abc import Callable

from .._engine import diagnostics as _diagnostics
from .._engine import planning as _planning
from .._engine.diagnostics import Traffic as Traffic
from .._engine.errors import NotComputed as NotComputed
from .._engine.planning import DeviceSpec as DeviceSpec
from .._engine.planning import StepPlan as StepPlan
from .._engine.planning.device_specs import device_specs as device_specs
from .._engine.runtime import Topology as Topology


def collectives() -> list[Traffic]:
    """Return what each of the last programs of several devices (at most 128) sends in one run, oldest first.

    Each has its `collectives`: the `kind`, the `line` of your program, the `count`, the `bytes` of the values on each
    device, the number of `devices` that take part together. `copied` are large values (16 MiB and more) that are
    gathered on every device, or left whole on each, without a mark that asks for it; the logger "torch_xla.sharding"
    warns of them with line and remedy when the program is compiled.

    >>> import torch_xla
    >>> torch_xla.debug.collectives()
    []
    """
    return _diagnostics.traffic_of_programs()


def explain_collectives() -> str:
    """Return `collectives()` as a table.

    ```
    program 1 on 4 devices: 211 operations, 8.39 MB, ends at train.py:31 in step
        4.19 MB     2 × all-gather among 4, up to f32[1024,1024]  train.py:28 in step
        4.19 MB     1 × all-reduce among 4, up to f32[1024,1024]  train.py:30 in step
    ```

    >>> import torch_xla
    >>> torch_xla.debug.explain_collectives()
    'no program of several devices was compiled'
    """
    return _diagnostics.traffic_report()


def plan(
    step: Callable[..., object],
    *args: object,
    steps: int = 2,
    devices: int | None = None,
    device: str | DeviceSpec | None = None,
    topology: str | Topology | None = None,
    rank: int | None = None,
) -> StepPlan:
    """Record `steps` calls of `step(*args)`, compile their programs, and report what they need. Nothing runs.

    The result has for each program the bytes on each device by what they hold (parameters, gradients, optimizer state,
    intermediates) with the largest tensors and your lines, the FLOPs, the bytes of each kind of collective, and
    `advice`; `print(plan)` shows all of it. The default is two calls, because an optimizer makes its state in the
    first. Each call ends with a sync.

    `topology` is a machine that need not be here: "v5e:4x4", "v5p:2x2x4", "v6e:8x8", "h100:8", "a100:8", "2*v5e:4x4"
    for two slices, or a `Topology`. XLA's compiler for it makes the programs (`pip install 'torch_xla[plan-tpu]'`, or
    `[plan-cuda12]`), so sizes have the padding of its layouts, and a TPU's compiler estimates cycles: `cycles` of each
    program, by line and by module, with its `text`. Each collective has the `axes` of your mesh that it travels along.

    With a `rank` each device of the topology is of one process, as after `torch_xla.launch`, and `step` is that of the
    process with this rank: collectives of `xm`, and what is trained with them, are between as many processes.

    `devices` virtual devices run it together, however many this machine has: compiled as for the CPU, and only a rough
    guide to intermediates and collectives elsewhere. With neither the plan is for the devices of this process, and the
    programs it compiles are those a run finds compiled. `device` names one of `torch_xla.debug.device_specs`, or is a
    `DeviceSpec`: with it, or on a device that is known, times are estimated from its rates.

    No tensor has memory in a plan. A model may be made inside of `step`, or outside under `torch.device("xla")`, where
    it is only recorded. Afterwards tensors, gradients, optimizers and random numbers are as they were; what else `step`
    changes in Python stays changed. Reading a value in `step` raises `torch_xla.debug.NotComputed` (a `RuntimeError`);
    so does reading a tensor afterwards that was made in it. `ValueError` for a device, topology or rank that does not
    exist, `ModuleNotFoundError` with the command where its compiler is not installed.

    >>> import torch, torch_xla
    >>> model = torch.nn.Linear(1000, 1000).to("xla")
    >>> def step():
    ...     model(torch.ones(8, 1000, device="xla")).sum().backward()
    >>> plan = torch_xla.debug.plan(step, steps=1)
    >>> plan.programs[0].held.parameters, plan.programs[0].held.gradients
    (4004000, 4004000)
    >>> plan.flops
    16000000.0
    >>> model.weight.grad is None
    True
    """
    return _planning.plan_of(lambda: step(*args), steps, devices, device, topology, rank)
