"""Modes: ways to run a program other than recording it each step. A region is one graph, a replay records nothing, and
eager mode runs each operation at once.

In: the user's functions. Out: the same results, sooner; or a reason, once, why not.

Doors: compiled, eager, planning, region.
"""
