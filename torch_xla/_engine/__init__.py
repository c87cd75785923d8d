"""The engine. Each folder is a room, named after its topic; `docs/architecture.md` lists them in the order of imports.

The life of `z = x + y`, and of `print(z)`:

    dispatch/   PyTorch's dispatcher calls the kernel of `aten::add.Tensor` with two tensors.
    tensor/     Each tensor's storage holds a value: a buffer, or a slot of the tape.
    ir/         The call is looked up as a plan and appended to the tape: [plan, slot of x, slot of y].
                A tensor that shows its storage in another order records a read through its view (`ir/view/`).
    dispatch/   A new tensor is made, whose storage holds the new slot. Nothing was computed.

    transfer/   `print` needs the value.
    step/       The part of the tape that the value depends on is cut out as a graph,
    compile/    found among the programs, or
    lowering/     lowered operator by operator to JAX and compiled by XLA,
    step/       and started on the device with the buffers of the inputs.
    runtime/    PJRT runs it, and the result is copied to the host.
    metrics/    Everything above counts what it did, and informs those who listen.
    diagnostics/  Reports, profiles and explanations are made from that.

Other ways to run a program are in `compiled/`: replays, regions, eager mode, `torch.compile`, loops. Several processes:
`processes/` and `distributed/`. Several devices as one: `sharding/`. Borrowed and patched names of PyTorch and
JAX: `compat/`.
"""
