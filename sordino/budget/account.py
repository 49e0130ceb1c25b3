"""What a ledger's entries cost together: prices, refusals, and the two ways of accounting (see `ledger`)."""

import math
from dataclasses import replace

from sordino.budget.accountant import Cost, cost
from sordino.budget.entries import Entry, Planned, Terms, Totals
from sordino.budget.events import Composed, Event, UnsupportedEvent, composed
from sordino.budget.events.base import check_delta, refuse_add_remove


class BudgetExceeded(ValueError):  # noqa: N818
    """The charge would overspend; nothing was recorded."""


class Account:
    """The terms, the plan and the entries of a ledger in memory, and every figure that follows from them."""

    terms: Terms
    _plan: tuple[Planned, ...]
    _entries: tuple[Entry, ...]
    _sums: Totals | None

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self._entries

    @property
    def plan(self) -> tuple[Planned, ...]:
        return self._plan

    @property
    def adaptive(self) -> bool:
        """Whether an event was chosen after outputs about the same part of the data had been seen."""
        return any(not entry.planned for entry in self._entries)

    def parts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*(item.part for item in self._plan), *(entry.part for entry in self._entries)]))

    def number_of(self, run: str) -> int | None:
        """The number of this run's entry: a release is paid for by an entry of the run that makes it, and no other.

        Entries without a run's name, as `spend` makes them by default, belong to no run.
        """
        return next((number for number, entry in enumerate(self._entries) if run and entry.run == run), None)

    def refuse_add_remove(self) -> None:
        """Called by everything that uses the number of records, which is private under add-remove."""
        refuse_add_remove(self.terms.adjacency)

    def epsilon(self, delta: float | None = None) -> float:
        """ε of all that has been drawn so far: the largest over the parts of the data."""
        return self.cost(delta).epsilon

    def cost(self, delta: float | None = None, *, reserved: bool = False) -> Cost:
        """The headline with both accountants behind it; with `reserved`, of all that may still be drawn as well."""
        delta = self._delta(delta)
        costs = [self._part_cost(part, delta, reserved) for part in self.parts()]
        return max(costs, key=lambda item: item.epsilon, default=Cost(0.0, "pld", 0.0, 0.0))

    def remaining(self, delta: float | None = None) -> float:
        """Target less what is spent, for display: ε does not add up, so the next event may cost less than it alone."""
        if self.terms.target_epsilon is None:
            raise ValueError("this ledger has no target ε")
        return max(0.0, self.terms.target_epsilon - self.epsilon(delta))

    def epsilon_if(self, event: Event, part: str = "train", delta: float | None = None) -> float:
        """The headline if this event came next: announced while that is possible, else through the filter."""
        delta = self._delta(delta)
        if self._totals().drawn_from(part):
            _refuse_exceptions(event)
            return self._filtered(part, delta, event)
        together = Composed((self._committed(part), event))
        return cost(together, delta, self.terms.adjacency).epsilon

    def _delta(self, delta: float | None) -> float:
        chosen = self.terms.target_delta if delta is None else delta
        if chosen is None:
            raise ValueError("ε needs a δ: this ledger was opened without one, so pass delta")
        return check_delta(chosen)

    def _is_planned(self, asked: Planned) -> bool:
        """Whether this was announced and has not been taken yet."""
        return [item.normal() for item in self._plan].count(asked) > self._totals().taken[asked]

    def _drawn(self, part: str) -> list[Entry]:
        return [entry for entry in self._entries if entry.part == part]

    def _committed(self, part: str) -> Event:
        """All that may be drawn: the plan in full, drawn or not, and every unplanned entry."""
        planned = [item.event for item in self._plan if item.part == part]
        return composed([*planned, *(entry.reserved for entry in self._drawn(part) if not entry.planned)])

    def _totals(self) -> Totals:
        """The sums over all entries, brought up to date with those that are new."""
        if self._sums is None or self._sums.plan is not self._plan or self._sums.entries > len(self._entries):
            self._sums = Totals(self._plan, self.terms)
        self._sums.add(self._entries[self._sums.entries :])
        return self._sums

    def _part_cost(self, part: str, delta: float, reserved: bool) -> Cost:
        entries = self._drawn(part)
        event = self._committed(part) if reserved else composed([entry.spent for entry in entries])
        if all(entry.planned for entry in entries):
            return cost(event, delta, self.terms.adjacency)
        # An early stop of a planned run is a choice too: the filter counts what was announced.
        try:
            priced = cost(event, delta, self.terms.adjacency)
        except UnsupportedEvent:
            priced = Cost(math.inf, "renyi-filter", None, None)
        return replace(priced, epsilon=self._filtered(part, delta), accountant="renyi-filter")

    def _filtered(self, part: str, delta: float, more: Event = Composed(())) -> float:  # noqa: B008
        """ε of all that may be drawn from a part, and more, by the Rényi filter."""
        try:
            total = self._totals().committed(part).plus(more)
        except UnsupportedEvent as problem:
            raise UnsupportedEvent(
                f"{problem}: it can be spent only if it is planned when the ledger is opened"
            ) from None
        return total.epsilon(delta)

    def _check_plan(self, plan: tuple[Planned, ...]) -> None:
        # Without a δ nothing can be compared, but an event that no accountant knows is refused all the same.
        delta = self.terms.target_delta or 1e-5
        for part in dict.fromkeys(item.part for item in plan):
            here = [item for item in plan if item.part == part]
            priced = cost(composed([item.event for item in here]), delta, self.terms.adjacency)
            self._refuse_above_target(priced.epsilon, " and ".join(item.what for item in here))

    def _check_filter(self, event: Event, what: str, part: str) -> None:
        _refuse_exceptions(event)
        epsilon = self._filtered(part, self.terms.target_delta or 1e-5, event)
        note = " (an event not planned at opening is summed by a Rényi filter)"
        self._refuse_above_target(epsilon, what, note)

    def _refuse_above_target(self, epsilon: float, what: str, note: str = "") -> None:
        target = self.terms.target_epsilon
        if target is not None and not epsilon <= target:
            raise BudgetExceeded(
                f"'{what}' would bring ε to {epsilon:.4g}{note}, above the target {target:g} at "
                f"δ={self.terms.target_delta:g}; remaining: ε={self.remaining():.4g}. Nothing was recorded"
            )


def _refuse_exceptions(event: Event) -> None:
    """The filter's δ must be fixed before the first output: exceptions chosen where it was lucky would not average out.

    Those of the plan are fixed, so they are taken from δ at the start.
    """
    if event.exceptions():
        raise UnsupportedEvent(
            "an event with exceptions, chosen after outputs were seen: its share of δ was not set aside; "
            "it can be spent only if it is planned when the ledger is opened"
        )
