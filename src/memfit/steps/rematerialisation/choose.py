"""Choosing what a training step keeps: the least recomputation whose activations fit in a number of bytes."""

import math
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np

from memfit.errors import InvalidInput
from memfit.sizes import Size
from memfit.steps.rematerialisation.options import Choices, Option, options_by_start
from memfit.steps.rematerialisation.peak import predicted_peak
from memfit.steps.rematerialisation.recomputation import recomputations
from memfit.steps.rematerialisation.refinement import Choice, Ledger, refined
from memfit.steps.rematerialisation.segments import Segments
from memfit.steps.rematerialisation.trace import Tensor, Trace, trace

# Kept bytes are counted in this many steps of the budget; each segment is rounded up.
_STEPS = 160
# Fractions of stock's activation memory that `find_choices` looks at.
_RATIOS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3, 0.27, 0.24, 0.225, 0.21, 0.195, 0.18, 0.15, 0.12)
# Recomputation above this part of a step (nearly two forward passes) is not looked for: micro-batches cost less.
_DEAREST = 0.6
# Steps counted, some 3 seconds of them, after which no more single changes are looked for where cuts do.
_COUNTED = 1_200_000


def find_choices(
    model: Any, batch_size: int, specs: Any = None, compiled: bool | None = None
) -> tuple[Segments, ...]:
    """Lists the choices worth having, from the fastest to the one with the least memory.

    Args:
        model: A built Keras model.
        batch_size: The batch the figures are for.
        specs: Tensor specs of the model's inputs; needed only for subclassed models.
        compiled: Whether XLA compiles the step; None for what the model was compiled with.

    Returns:
        Choices of which none is both smaller and faster than another; empty if nothing can be saved.
    """
    chooser = _chooser(model, batch_size, specs, compiled)
    found = chooser.down_to(0.0)
    best: list[Segments] = []
    for choice in sorted(found, key=lambda choice: (choice.recomputed, choice.activation_bytes)):
        if choice.activation_bytes < min((other.activation_bytes for other in best), default=chooser.stock):
            best.append(choice)
    return tuple(best)


def choose(
    model: Any,
    batch_size: int,
    activation_budget: int | float,
    inputs: Any = None,
    *,
    compiled: bool | None = None,
) -> Segments:
    """Chooses the least recomputation with which the activations of a step fit.

    Args:
        model: A built Keras model.
        batch_size: The batch the step is for.
        activation_budget: Bytes for the activations, or, as a float up to 1, a part of what stock Keras takes.
        inputs: Tensor specs of the model's inputs; needed only for subclassed models.
        compiled: Whether XLA compiles the step; None for what the model was compiled with.

    Returns:
        The choice, which `rematerialise` applies to the model or to a copy.

    Raises:
        InvalidInput: If no choice is that small; the message says what the smallest takes.
    """
    chooser = _chooser(model, batch_size, inputs, compiled)
    budget = activation_budget * chooser.stock if isinstance(activation_budget, float) else activation_budget
    choice = chooser.within(budget)
    if choice is not None:
        return choice
    found = chooser.down_to(budget)
    if found and found[-1].activation_bytes <= budget:
        return found[-1]
    smallest = Size(min((choice.activation_bytes for choice in found), default=chooser.stock))
    raise InvalidInput(
        "The activations do not fit, however much is computed again",
        received=str(Size(int(budget))),
        remedy=f"Give at least {int(smallest)} bytes ({smallest}), or use a smaller batch",
    )


def _chooser(model: Any, batch_size: int, inputs: Any, compiled: bool | None) -> "_Chooser":
    if compiled is None:
        compiled = bool(getattr(model, "jit_compile", False))
    return _Chooser(trace(model, batch_size, inputs, by_branch=compiled), batch_size, compiled)


def _peak_of_all(trace: Trace) -> int:
    """The peak of a step that computes nothing again."""
    everything = (
        (index, number) for index, op in enumerate(trace.forward) for number in range(len(op.sizes))
    )
    return predicted_peak(trace, frozenset(everything), ())


@dataclass(frozen=True)
class _Step:
    start: int
    option: Option | None
    bucket: int


class _Chooser:
    """Dynamic programming over the cuts of one trace."""

    def __init__(self, trace: Trace, batch_size: int, compiled: bool = False) -> None:
        if compiled:
            stock = None if trace.stock is None else replace(trace.stock, in_place=False)
            trace = replace(trace, stock=stock, in_place=False)
        self.trace = trace
        self.batch_size = batch_size
        self.choices = Choices(trace)
        self.table = options_by_start(self.choices)
        self.stock = _peak_of_all(trace.stock or trace)
        self.ledger = Ledger(self.choices)
        self.all_large = frozenset(tensor for tensors in self.choices.needed for tensor in tensors)
        # Small tensors, which the ledger leaves out.
        self.slack = _peak_of_all(trace) - max(
            self.ledger.count(Choice(self.all_large, ())).totals, default=0
        )
        self.step_cost = sum(op.cost for op in trace.ops)

    def within(self, budget: float) -> Segments | None:
        """Finds a choice within a budget by cuts alone, which is quick; None where they do not get there."""
        choice = self._divided(budget - self.slack)
        if choice is None or not self.ledger.count(choice).within(budget - self.slack):
            return None
        return self._segments(choice)

    def down_to(self, budget: float) -> list[Segments]:
        """Lists choices of less and less memory, down to one within the budget or to the smallest there is.

        There are two ways: cuts, which are quick, and single changes from the choice before, which go farther and
        cost less time in a U-Net, but take long to find in a large network. The cheaper choice of the two is taken.
        """
        found: list[Segments] = []
        latest = walked = Choice(self.all_large, ())
        for ratio in _RATIOS:
            aim = max(ratio * self.stock, budget) - self.slack
            divided = self._divided(aim)
            tried = [] if divided is None else [divided]
            may_walk = self.ledger.counted < _COUNTED
            if may_walk and (farther := refined(self.ledger, walked, aim)) is not None:
                walked = farther
                tried.append(walked)
            fitting = [
                (count.cost, choice) for choice in tried if (count := self.ledger.count(choice)).within(aim)
            ]
            if fitting:
                choice = min(fitting, key=itemgetter(0))[1]
            elif refinement := refined(self.ledger, divided or latest, aim):
                choice = refinement
            else:
                break
            latest = choice
            found.append(self._segments(choice))
            if found[-1].activation_bytes <= budget or found[-1].recomputed > _DEAREST:
                break
        return found

    def _divided(self, aim: float) -> Choice | None:
        """Finds cuts with the least recomputation for which each segment stays below `aim` bytes."""
        steps = self._cheapest(aim) if aim > 0 else None
        if steps is None:
            return None
        kept: set[Tensor] = set()
        for step in steps:
            kept |= set(step.option.inside) if step.option else set()
            kept |= self.choices.alive[self.choices.cuts[step.start]]
        return Choice(frozenset(kept), tuple(self.choices.cuts[step.start] for step in steps if step.start))

    def _first_op(self, place: int) -> int:
        """Skips constants and captured variables, which a graph has only once, wherever they were first read."""
        while self.trace.ops[place].type in ("Placeholder", "Const", "ReadVariableOp"):
            place += 1
        return place

    def _cheapest(self, aim: float) -> list[_Step] | None:
        """Least cost to reach each cut with each number of kept bytes so far, and the way back from the end."""
        unit = aim / _STEPS
        count = len(self.choices.cuts)
        best = np.full((count, _STEPS + 1), np.inf)
        best[0, 0] = 0.0
        came: list[list[_Step | None]] = [[None] * (_STEPS + 1) for _ in range(count)]
        for start in range(count - 1):
            if not np.isfinite(best[start]).any():
                continue
            for end, option in self.table[start]:
                more = math.ceil(option.keeps / unit)
                # While a segment's backward pass runs, all that was kept up to its end is there.
                room = int((aim - option.holds) / unit) - more
                if room < 0:
                    continue
                room = min(room, _STEPS - more)
                costs = best[start, : room + 1] + option.cost
                better = costs < best[end, more : more + room + 1]
                if better.any():
                    best[end, more : more + room + 1][better] = costs[better]
                    for place in np.flatnonzero(better).tolist():
                        came[end][place + more] = _Step(start, option, place)
        if not np.isfinite(best[-1]).any():
            return None
        steps: list[_Step] = []
        cut, bucket = count - 1, int(np.argmin(best[-1]))
        while cut:
            step = came[cut][bucket]
            assert step is not None
            steps.append(step)
            cut, bucket = step.start, step.bucket
        return steps[::-1]

    def _segments(self, choice: Choice) -> Segments:
        starts = tuple(sorted({self._first_op(start) for start in choice.starts}))
        kept = choice.kept | self.choices.small
        parts = recomputations(self.trace, kept, starts)
        again = [index for part in parts for index in part.order if index < self.trace.forward_count]
        # What a reshape shows is read under another name than it is kept under.
        read = {
            self.choices.root(tensor)
            for part in parts
            for index in part.order
            for tensor in self.trace.ops[index].inputs
        }
        extra = sum(self.trace.ops[index].cost for index in again)
        return Segments(
            batch_size=self.batch_size,
            starts=tuple(self.trace.ops[start].name for start in starts),
            kept=tuple(self.trace.tensor_name(tensor) for tensor in sorted(self._worth_naming(kept & read))),
            stock_bytes=Size(self.stock),
            activation_bytes=Size(predicted_peak(self.trace, kept, starts)),
            recomputed=extra / self.step_cost,
        )

    def _worth_naming(self, kept: frozenset[Tensor]) -> set[Tensor]:
        """Picks the tensors that would be computed again if they were not named."""
        return {tensor for tensor in kept if self.trace.ops[tensor[0]].recomputable}
