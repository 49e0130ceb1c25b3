"""Several trainings in step: where they train one dense network, their sums are made in the same few calls."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

from sordino.training.dense import Asked, DenseTrainee, sums_together
from sordino.training.dpsgd import ClippedSum, Steps, T, Wanted


def side_by_side(trainings: Sequence[Steps[T]]) -> list[T]:
    """What each of them comes to, as if it had run alone, but for rounding.

    Each keeps its own run, key, ledger and checkpoints; they share calls, and nothing else. An error in one ends all,
    where a kill would have left them: they can go on from their folders.

    Guarantee: each training's own. A sum is of its own draw, and is noised by its own key.
    """
    ends: dict[int, T] = {}
    waiting: dict[int, Wanted] = {}
    with ExitStack() as stack:
        for number, training in enumerate(trainings):
            stack.enter_context(closing(training))
            try:
                waiting[number] = next(training)
            except StopIteration as end:
                ends[number] = end.value
        while waiting:
            for number, clipped in list(_found(waiting)):
                try:
                    waiting[number] = trainings[number].send(clipped)
                except StopIteration as end:
                    ends[number] = end.value
                    del waiting[number]
    return [ends[number] for number in range(len(trainings))]


def _found(waiting: Mapping[int, Wanted]) -> Iterator[tuple[int, ClippedSum]]:
    """The sums that they wait for."""
    companies: dict[Any, dict[int, Asked]] = defaultdict(dict)
    for number, (trainee, indices, l2_clip, _, _) in waiting.items():
        if isinstance(trainee, DenseTrainee) and trainee.place[1] > 1:
            companies[trainee.company][number] = Asked(trainee, indices, l2_clip)
        else:
            yield number, waiting[number].found()
    for members in companies.values():
        yield from zip(members, sums_together(list(members.values())), strict=True)
