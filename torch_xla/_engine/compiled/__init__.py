"""Compiled: run a program in other ways than recording each step.

A region is one graph, a replay (`replay/`) records nothing, eager mode runs each operation at once, `dynamo/` is
`torch.compile(backend="openxla")`, and `loops/` traces loops and branches. In: the user's functions. Out: the same
results, sooner; or a reason, once, why not.

Doors: compiled_function, dynamo, dynamo.backend, dynamo.registration, eager, loops.accumulation_loop,
loops.closure_captures, loops.loop_bodies, loops.scan_layers, loops.scan_loop, loops.while_loops, region.
"""
