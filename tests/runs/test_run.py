"""A run's files: sealed weights, and what a folder may hold for a run to begin in it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from sordino.runs import Run, RunError

TENSORS = {
    "weight": torch.arange(6.0).reshape(2, 3),
    "scale": torch.tensor(0.5, dtype=torch.bfloat16),
    "counts": torch.tensor([1, 2]),
    "none": torch.zeros(0, 3),
    "kept": torch.tensor([True, False]),
}


def test_weights_come_back_as_they_were_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    run = Run.at(tmp_path)
    run.write_tensors(run.model, TENSORS, {"steps": 3, "rate": 0.1})
    content = run.model.read_bytes()
    tensors, facts = run.read_tensors(run.model)
    assert all(torch.equal(tensors[name], value) for name, value in TENSORS.items())
    assert (facts["steps"], facts["rate"]) == (3, 0.1)
    run.write_tensors(run.model, dict(reversed(TENSORS.items())), {"rate": 0.1, "steps": 3})
    assert run.model.read_bytes() == content


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    run = Run.at(tmp_path)
    run.write_tensors(run.model, TENSORS, {"steps": 3})
    content = run.model.read_bytes()
    for place in range(len(content)):
        run.model.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        # In the very word "seal" a flip makes a file without one, which is warned of.
        with pytest.raises((RunError, UserWarning), match="damage"):
            run.read_tensors(run.model)


def test_a_file_under_another_key_is_refused(tmp_path: Path) -> None:
    run = Run.at(tmp_path)
    run.write_tensors(run.model, TENSORS, {}, b"one")
    run.read_tensors(run.model, b"one")
    run.read_tensors(run.model)
    with pytest.raises(RunError, match="not written by this run"):
        run.read_tensors(run.model, b"other")
    run.write_tensors(run.model, TENSORS, {})
    with pytest.raises(RunError, match="not written by this run"):
        run.read_tensors(run.model, b"one")


def test_weights_of_an_older_version_are_read_with_a_warning(tmp_path: Path) -> None:
    run = Run.at(tmp_path)
    run.model.write_bytes(save(TENSORS, {"sordino": json.dumps({"steps": 3})}))
    with pytest.warns(UserWarning, match="has no checksum"):
        assert run.read_tensors(run.model)[1] == {"steps": 3}
    run.write_sealed("run.json", {"status": "training"})  # as it was written before
    run.write_description({"status": "finished"})
    with pytest.warns(UserWarning, match="has no checksum"):
        run.read_tensors(run.model)


def test_weights_that_lost_their_seal_are_refused(tmp_path: Path) -> None:
    run = Run.at(tmp_path)
    run.write_description({"status": "training"})
    run.write_description({"status": "finished"})
    run.model.write_bytes(save({"weight": -TENSORS["weight"]}, {"sordino": '{"steps": 3}'}))
    with pytest.raises(RunError, match="has lost its checksum: it was altered or replaced; restore it"):
        run.read_tensors(run.model)
