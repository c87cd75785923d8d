"""Dynamo: `torch.compile(backend="openxla")`. A graph that PyTorch traced becomes one operation on the tape.

In: FX graphs of functional aten operators, forward and backward. Out: callables that record one operation and, where no
backward will follow, start it. What follows before the end of the step, backward and optimizer, joins its program.
"""

from .install import install as install
