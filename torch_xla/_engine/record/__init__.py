"""Record: what is behind a torch.Tensor on `xla`: its storage, the tape it is recorded on, the sync of a step.

In: calls from `dispatch/`. Out: buffers, by way of `compile/` and `execute/`.
"""
