"""A counterexample is a value: what was done, to what, and which property it broke."""

from msgspec import Struct

from model.operations import Trace
from properties.lockstep import Subject, Violation, stand


class Counterexample(Struct, frozen=True):
    """A trace whose last step breaks a property.

    Attributes:
        trace: The workload and the calls, up to the one that breaks it.
        violation: The broken call, the property, and the difference in words.
        target: Name of the target.
        engine: Which engine found it.
    """

    trace: Trace
    violation: Violation
    target: str
    engine: str

    @property
    def shape(self) -> tuple[str, ...]:
        """What kind of story it is: the property and the kinds of its steps, whoever takes them."""
        kinds = [
            type(step.taken).__name__ if step.taken is not None else type(step.calls[0]).__name__
            for step in self.trace.steps
        ]
        return (self.violation.property, *kinds)

    @property
    def size(self) -> tuple[int, ...]:
        """For ordering: steps first, then calls, then the workload's extent."""
        workload = self.trace.workload
        items = [item for request in workload.requests for item in request.items]
        return (
            len(self.trace),
            sum(1 for _ in self.trace.calls),
            len(workload.requests),
            len(items),
            sum(item.embeds for item in items),
            workload.capacity,
            workload.compute_budget,
        )


def replay(trace: Trace, target: Subject) -> Violation | None:
    """Runs a trace against a fresh session; the first violation, or None.

    Calls are made as they stand in the trace: whether they are legal is the contract's question.
    """
    judge = stand(target, trace.workload)
    try:
        for call in trace.calls:
            violation = judge.apply(call)
            if violation is not None:
                return violation
        return None
    finally:
        judge.close()
