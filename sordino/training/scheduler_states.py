"""States of learning-rate schedulers as JSON that reads back exactly: JSON's own objects make every key a text."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

_PAIRS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "counter": Counter}


class SchedulerError(ValueError):
    """A scheduler whose state no checkpoint can hold."""


def scheduler_states(schedulers: Sequence[Any]) -> list[Any]:
    """JSON values of each scheduler's state_dict, refused unless the very same state can be read back.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], 0.1)
    >>> [state] = scheduler_states([torch.optim.lr_scheduler.MultiStepLR(optimizer, [12])])
    >>> read_state(state)["milestones"]
    Counter({12: 1})
    """
    states = []
    for scheduler in schedulers:
        name = type(scheduler).__name__
        try:
            kept = _written(scheduler.state_dict())
            text = json.dumps(kept)
            same = json.dumps(_written(read_state(json.loads(text)))) == text
        except (AttributeError, TypeError, ValueError, RecursionError) as problem:
            why = str(problem).partition("\n")[0]
            raise SchedulerError(f"the state of {name} cannot be kept in a checkpoint: {why}") from problem
        if not same:
            raise SchedulerError(f"the state of {name} cannot be kept in a checkpoint: it reads back as another")
        states.append(kept)
    return states


def read_state(kept: Any) -> Any:
    """The state that these JSON values were made from."""
    if not isinstance(kept, list):
        return kept
    kind, content = kept
    if kind == "list":
        return [read_state(each) for each in content]
    if kind == "tuple":
        return tuple(read_state(each) for each in content)
    if kind in _PAIRS:
        return _PAIRS[kind]({read_state(name): read_state(value) for name, value in content})
    return np.dtype(kind).type(content)


def _written(value: Any) -> Any:
    """Plain numbers, texts and None as they are, all else as a list of its kind and its content."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        return [type(value).__name__, [_written(each) for each in value]]
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return [value.dtype.name, value.item()]
    for kind, pairs in _PAIRS.items():
        if type(value) is pairs:
            return [kind, [[_written(name), _written(each)] for name, each in value.items()]]
    raise TypeError(f"it holds a {type(value).__name__}, and can hold numbers, texts, lists, tuples and dicts")
