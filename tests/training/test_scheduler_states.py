"""Schedulers' states read back exactly, or are refused."""

import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from sordino.training.scheduler_states import SchedulerError, read_state, scheduler_states


class Fixed:
    def __init__(self, state: Any) -> None:
        self._state = state

    def state_dict(self) -> Any:
        return self._state


def there_and_back(state: Any) -> Any:
    [kept] = scheduler_states([Fixed(state)])
    return read_state(json.loads(json.dumps(kept, sort_keys=True)))


def test_keys_and_kinds_stay() -> None:
    state = {
        **{1: "one", "1": True, None: 1.0, 2.5: [(), [], {}]},
        **{"counter": Counter({12: 1}), "half": np.float32(0.1), "double": np.float64(0.1), "infinite": -math.inf},
    }
    back = there_and_back(state)
    assert repr(back) == repr(state)
    assert math.isnan(there_and_back({"nan": math.nan})["nan"])


@pytest.mark.parametrize("value", [{1}, torch.zeros(1), 1j, len, object(), b"text"])
def test_what_cannot_be_kept_is_refused_in_one_line(value: Any) -> None:
    with pytest.raises(SchedulerError, match="the state of Fixed cannot be kept in a checkpoint: it holds") as refused:
        scheduler_states([Fixed({"value": [value]})])
    assert "\n" not in str(refused.value)


def test_torchs_schedulers_can_be_kept() -> None:
    def optimizer() -> torch.optim.Optimizer:
        return torch.optim.SGD([torch.zeros(1)], 0.1, momentum=0.9)

    first = optimizer()
    schedulers = [
        lr_scheduler.LambdaLR(optimizer(), lambda step: 0.9**step),
        lr_scheduler.MultiStepLR(optimizer(), [3, 5]),
        lr_scheduler.OneCycleLR(optimizer(), 0.1, total_steps=10),
        lr_scheduler.CyclicLR(optimizer(), 0.1, 0.2),
        lr_scheduler.CosineAnnealingWarmRestarts(optimizer(), 4),
        lr_scheduler.ReduceLROnPlateau(optimizer()),
        lr_scheduler.SequentialLR(first, [lr_scheduler.ConstantLR(first), lr_scheduler.ExponentialLR(first, 0.9)], [2]),
    ]
    for scheduler, kept in zip(schedulers, scheduler_states(schedulers), strict=True):
        state = read_state(json.loads(json.dumps(kept)))
        assert state == scheduler.state_dict()
        scheduler.load_state_dict(state)
