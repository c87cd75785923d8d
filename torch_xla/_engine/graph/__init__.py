"""Graph: what was recorded, as plain values. Nothing here runs anything; an operator is an opaque name.

In: plans and slots from `dispatch/`. Out: graphs for `compile/`.

Doors: every module.
"""
