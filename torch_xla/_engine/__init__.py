"""The engine. Its rooms stand in the order in which a program passes them, read from the bottom of this list upwards.

The life of `z = x + y`, and of `print(z)`:

    dispatch/   PyTorch's dispatcher calls the kernel of `aten::add.Tensor` with two tensors.
    record/     Each tensor's storage holds a value: a buffer, or a slot of the tape.
    view/       A tensor that shows its storage in another order records a read through its view.
    graph/      The call is looked up as a plan and appended to the tape: [plan, slot of x, slot of y].
    dispatch/   A new tensor is made, whose storage holds the new slot. Nothing was computed.

    record/     `print` needs the value: the part of the tape it depends on is cut out as a graph,
    compile/    found among the programs, or
    lowering/     lowered operator by operator to JAX and compiled by XLA,
    execute/    started on the device with the buffers of the inputs,
    client/     and its result is copied to the host.
    metrics/    Everything above counts what it did, and tells those who listen.
    diagnostics/  Whoever asks why it was slow is answered from that.

`operators/` holds what is more than one recorded call, and `backend/` registers everything with PyTorch. Beyond them,
`modes/` runs programs in other ways than recording each step, and `dynamo/` records what `torch.compile` has traced as
one operation.
"""
