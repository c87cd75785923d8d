"""Tensor: what is behind a torch.Tensor on `xla`: its storage's value, the tape it is recorded on, its way to the host.

In: calls from `dispatch/`. Out: buffers, by way of `compile/` and `execute/`.
"""
