"""Check that a graph is well-formed. Tests do so after every cut."""

from .graph import Graph


def verify(graph: Graph) -> None:
    """Raise `ValueError` with the first operation that breaks a rule."""
    defined = len(graph.inputs)
    numbers = draws = 0
    for index, operation in enumerate(graph.operations):
        plan = operation.plan
        where = f"operation {index} ({plan.op})"
        if len(operation.operands) != len(plan.operands):
            raise ValueError(f"{where}: {len(operation.operands)} operands, its plan has {len(plan.operands)}")
        for slot, spec in zip(operation.operands, plan.operands, strict=True):
            if not 0 <= slot < defined:
                raise ValueError(f"{where}: reads slot {slot} before it is filled")
            if graph.specs[slot].size != spec.size or graph.specs[slot].dtype is not spec.dtype:
                raise ValueError(f"{where}: slot {slot} is {graph.specs[slot]}, its plan expects {spec}")
        if operation.first_output != defined or operation.first_number != numbers:
            raise ValueError(f"{where}: its slots or numbers are out of order")
        if plan.draws and operation.draw != draws:
            raise ValueError(f"{where}: its draw is out of order")
        defined += len(plan.outputs)
        numbers += len(plan.numbers)
        draws += plan.draws
    for slot in graph.outputs:
        if not 0 <= slot < defined:
            raise ValueError(f"output slot {slot} is never filled")
