"""Dynamo: `torch.compile(backend="openxla")`. A graph that PyTorch traced becomes one operation on the tape.

In: FX graphs of functional aten operators, forward and backward. Out: callables that record one operation and start it
if no backward pass will follow. The backward pass and the optimizer of the same step join its program.
"""

from .install import install as install
