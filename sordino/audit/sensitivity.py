"""Whether one record moves the clipped sums by at most the clip, whatever the record and the weights are."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from sordino.audit.result import Finding
from sordino.data import Records
from sordino.gradients import ExamplesMixError
from sordino.mechanisms import Stream, Streams
from sordino.training import Trainable

_TOLERANCE = 1e-5
_BATCH, _MOST_BATCHES = 8, 3
_LOOKED_AT = 64
"""Records among which one that is not finite is looked for."""
_PHYSICAL = 20
"""Physical batches that a large batch is divided into, more than the model accumulates at once."""
_WEIGHTS = (None, 1.0)
"""Standard deviations of the weights to probe at; None is the model's own initialisation."""


def sensitivity_probe(
    model: Trainable, records: Records, l2_clip: float, streams: Streams, expected_batch_size: int | None = None
) -> Finding:
    """Zero out records one at a time, in random batches, at several weights.

    With a plan's expected batch size, also zero out some records of one batch of that size (or of all records if there
    are fewer), once divided as the model divides it and once in many small physical batches.

    Fails if a record moves the sums by more than the clip, except for rounding, or moves what the others add (examples
    that mix: batch norm in training mode). It is exact about what it tries and proves nothing about the rest, so
    the records should be `adversarial_rows`. A model with random views is refused: without a record the others get
    other views, which is not a fault.

    Rounding. Zero-out replaces a record by an empty one, so both batches have the same shape, and each of the others'
    gradients is rounded the same way in both. So a record that is not finite, which adds nothing, takes the place of
    the one that is zeroed out. Taking the record out instead would change the batch's shape, and with it the order in
    which matrix products add: scores w·x of d numbers then move by Δ ≤ 2d·u·‖w‖‖x‖ (u = 2⁻²⁴), and softmax turns that
    into a relative change of up to e^2Δ − 1 in a gradient, which no clip undoes. For ‖x‖ = 1e10 it may be anything, so
    no tolerance would cover it. In place, only the sums' own rounding is left: B products of norm at most C, added in
    any order, err by at most (B + 1)·u·B·C, and four such sums by 4·B·(B + 1)·u = 1.7e-5 clips for B = 8. The tolerance
    for mixing, B·1e-5 clips, is above that.
    """
    if getattr(model, "augmented", False):
        raise ValueError("a model with random views cannot be probed: probe it without `augment`, its clip is the same")
    try:
        size = min(len(records), _BATCH if expected_batch_size is None else expected_batch_size)
        chosen = model.choose(records, None, size)
        largest, mixed = _worst(model, records, l2_clip, streams)
        if expected_batch_size is not None:
            largest = max(largest, _in_large_batches(model, records, chosen, l2_clip, streams, size))
    except ExamplesMixError as refusal:
        return Finding("sensitivity", 1.0, f"the engine refuses the model: {refusal}")
    kept = largest <= 1 + _TOLERANCE and mixed <= _BATCH * _TOLERANCE
    seen = f"a record moves the sum by up to {largest:.6f} clips, and what others add by {mixed:.1e}"
    return Finding("sensitivity", 1.0 if kept else 0.0, seen)


def _worst(model: Trainable, records: Records, l2_clip: float, streams: Streams) -> tuple[float, float]:
    """The largest change of the sums by one record, and of what the others add; both in clips."""
    n, generator = len(records), streams.generator(Stream.SAMPLING)
    empty = _empty_record(records)
    model.initialise(streams)
    largest = mixed = 0.0
    for deviation in _WEIGHTS:
        if deviation is not None:
            with torch.no_grad():
                for name in sorted(model.parameters):
                    value = model.parameters[name]
                    value.copy_(torch.from_numpy(generator.normal(0, deviation, tuple(value.shape))))
        for batch in _batches(n, generator):
            all_of_them = _sum(model, records, batch, l2_clip)
            without = [_sum(model, records, _zeroed(batch, [place], empty), l2_clip) for place in range(len(batch))]
            moved = [_length(all_of_them - one) / l2_clip for one in without]
            largest = max(largest, *moved)
            # If no record moves what others add, removing two records removes what each removes alone.
            for place in range(len(batch) - 1):
                neither = _sum(model, records, _zeroed(batch, [place, place + 1], empty), l2_clip)
                together = all_of_them - without[place] - without[place + 1] + neither
                mixed = max(mixed, _length(together) / l2_clip)
    return largest, mixed


def _in_large_batches(
    model: Trainable, records: Records, chosen: dict[str, Any], l2_clip: float, streams: Streams, size: int
) -> float:
    """The largest change by one record of a batch of this size, in clips, minus an allowance for rounding.

    First divided as the model chose, then in small physical batches.
    """
    n, empty = len(records), _empty_record(records)
    batch = np.sort(streams.generator(Stream.SAMPLING, 1).permutation(n)[:size])
    largest, rounding = 0.0, _TOLERANCE * max(0.0, len(batch) / _BATCH - 1)
    for small in (None, max(1, len(batch) // _PHYSICAL)):
        if small is not None:
            if "engine" not in chosen:
                break  # it divides batches in one way alone
            known = chosen | {"engine": chosen["engine"] | {"physical_batch": small}}
            chosen = model.choose(records, known, len(batch))
        model.initialise(streams)
        physical = chosen["engine"]["physical_batch"] if "engine" in chosen else len(batch)
        all_of_them = _sum(model, records, batch, l2_clip)
        for place in {0, physical, len(batch) // 2, len(batch) - 1}:
            if 0 <= place < len(batch):
                without = _sum(model, records, _zeroed(batch, [place], empty), l2_clip)
                largest = max(largest, _length(all_of_them - without) / l2_clip - rounding)
    return largest


def _batches(n: int, generator: np.random.Generator) -> list[NDArray[np.int64]]:
    """Disjoint random batches of at most this many records in all."""
    order = generator.permutation(n)[: _BATCH * _MOST_BATCHES]
    return [np.sort(order[start : start + _BATCH]) for start in range(0, len(order), _BATCH)]


def _empty_record(records: Records) -> int | None:
    """A record whose inputs are not finite, so that it adds nothing; None if the first ones are all finite."""
    for leaf in pytree.tree_leaves(records.batch(np.arange(min(len(records), _LOOKED_AT)))[0]):
        broken = (~torch.isfinite(leaf)).flatten(1).any(1).nonzero()
        if len(broken):
            return int(broken[0])
    return None


def _zeroed(batch: NDArray[np.int64], places: list[int], empty: int | None) -> NDArray[np.int64]:
    """The batch with an empty record in these places; without such a record, the batch without them."""
    if empty is None:
        return np.delete(batch, places)
    batch = batch.copy()
    batch[places] = empty
    return batch


def _sum(model: Trainable, records: Records, indices: NDArray[np.int64], l2_clip: float) -> Tensor:
    sums = model.clipped_sum(records, indices, l2_clip, np.random.default_rng(0)).sums
    return torch.cat([sums[name].detach().double().flatten() for name in sorted(sums)])


def _length(difference: Tensor) -> float:
    """The norm; infinity for NaN."""
    length = float(torch.linalg.vector_norm(difference))
    return math.inf if math.isnan(length) else length


def adversarial_rows(shape: tuple[int, ...], records: int, streams: Streams) -> NDArray[np.float32]:
    """Records of this shape: ordinary, large, tiny, zero, constant, duplicates, hardly finite and not finite."""
    rows = streams.generator(Stream.INITIALISATION).normal(size=(records, math.prod(shape))).astype(np.float32)
    kinds = len(_SCALES)
    rows *= np.resize(np.array(_SCALES, dtype=np.float32), records)[:, None]
    rows[_CONSTANT::kinds] = 37.0
    for kind, value in _POISONED.items():
        rows[kind::kinds, 0] = value
    rows[_DUPLICATE::kinds] = rows[0]
    return rows.reshape(records, *shape)


_SCALES = (1.0, 3.0, 1.0, 1e3, -1e3, 1e-4, 0.0, 0.0, 1e8, 1.0, 1.0, 1.0)
"""The scale of each kind of row; some kinds are changed further."""
_DUPLICATE, _CONSTANT = 2, 7
_POISONED = {9: math.nan, 10: math.inf, 11: 3e38}
"""The value that the first number of a row becomes."""
