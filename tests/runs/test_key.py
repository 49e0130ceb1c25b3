"""Keys as earlier versions wrote them: the same names in the ledger and the same bits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sordino.budget import BudgetExceeded, Gaussian, Ledger
from sordino.mechanisms import Stream, Streams
from sordino.runs import Binding, Diverged, Key, Purpose, Run, RunError, charged_key, release_once, until_diverged

SECRET = bytes(range(16)).hex()
HERE = {"threads": 1}


def first(streams: Streams) -> int:
    return int(streams.generator(Stream.NOISE, 3).integers(2**62))


def kept(folder: Path, purpose: Purpose, content: dict[str, Any]) -> Key:
    run = Run.at(folder)
    purpose.file(run).write_text(json.dumps(content))
    key = Key.read(run, purpose)
    assert key is not None
    key.keep(run, purpose)
    assert Key.read(run, purpose) == key  # and in today's format
    return key


def test_the_key_of_a_training(tmp_path: Path) -> None:
    content = {"secret": SECRET, "run": "ab", "seed": None, "plan": "plan", "data": "data", "environment": HERE}
    content |= {"choices": {"engine": "x"}, "era": 2, "lost": 3}
    key = kept(tmp_path, Purpose.RUN, content)
    assert key.name == "ab"
    assert first(key.streams) == 4139136016790915852
    assert first(replace(key, seed=5).streams) == 2185024622922228986
    assert key.mac("checkpoints of ab").hex() == "b13b03afc65fdcf172232410c73d671ff2fe32db4618ecb6545d67ec7bbff4f7"
    assert not key.streams.predictable
    assert SECRET not in repr(key)


def test_the_key_of_a_normalisation(tmp_path: Path) -> None:
    content = {"secret": SECRET, "moments": "M(1)", "data": "d", "environment": HERE, "seed": None}
    key = kept(tmp_path, Purpose.NORMALISATION, content)
    assert key.name == "2227d233074b5076"
    facts = {"secret": key.secret, "moments": key.plan, "data": key.data, "environment": key.environment}
    assert first(key.streams_for(facts)) == 2788383811144932233
    assert first(key.streams_for(facts | {"for": "thresholds of the normalisation"})) == 4507203147566602335


def test_the_keys_of_workflows_and_searches(tmp_path: Path) -> None:
    key = kept(tmp_path, Purpose.WORKFLOW, {"secret": SECRET, "question": "q", "data": "d"})
    assert key.name == "b6e76366c1e0d0b4"
    assert first(key.streams_for({"step": f"{key.name} 0123 a.json", "bound": "q d"})) == 1154584886170080092
    content = {"secret": SECRET, "question": "q", "data": "d", "seed": 1, "generator": "another"}
    key = kept(tmp_path, Purpose.SEARCH, content)
    assert (key.name, key.seed, key.environment) == ("fafa15dfe83e709f", 1, {"generator": "another"})
    assert int.from_bytes(key.mac("trial 3")[:7], "little") == 11455574806556844


def bound(data: str = "d", seed: int | None = None, plan: str = "p", **more: Any) -> Binding:
    return Binding(plan, lambda secret: data, seed, **more)


def test_a_key_that_has_paid_is_replayed_for_the_same_and_refused_for_anything_else(tmp_path: Path) -> None:
    run, ledger = Run.at(tmp_path / "run"), Ledger(9.0, 1e-5, path=tmp_path / "ledger.json")
    names = []
    for _ in range(2):
        with charged_key(run, ledger, bound()) as key:
            names.append((key.name, first(key.streams)))
            key.reserve(ledger, Gaussian(2.0), 1, "a sum", "train")
    assert names[0] == names[1]
    assert len(ledger.entries) == 1
    for other in (bound(data="other"), bound(plan="other"), bound(seed=3), bound(choose=lambda known: {"other": 1})):
        with pytest.raises(RunError), charged_key(run, ledger, other):
            pass
    wrong = Ledger(9.0, 1e-5, path=tmp_path / "wrong.json")
    with pytest.raises(RunError, match="pass the ledger"), charged_key(run, wrong, bound()):
        pass
    with charged_key(run, ledger, bound()) as key, pytest.raises(RunError, match="the ledger's entry"):
        key.reserve(ledger, Gaussian(2.0), 1, "another sum", "train")


def test_a_key_that_has_not_paid_is_replaced_and_deleted_if_refused(tmp_path: Path) -> None:
    run, ledger = Run.at(tmp_path), Ledger(0.1, 1e-5)
    with charged_key(run, ledger, bound()) as unpaid:
        pass
    with pytest.raises(RunError, match="other data"), charged_key(run, ledger, bound(data="other"), drawn=True):
        pass
    with charged_key(run, ledger, bound(data="other")) as key:
        assert key.secret != unpaid.secret
    Key.end(run)
    with pytest.raises(BudgetExceeded), charged_key(run, ledger, bound()) as key:
        key.reserve(ledger, Gaussian(0.1), 1, "dear", "train")
    assert Key.read(run) is None


def test_a_seed_is_charged_once(tmp_path: Path) -> None:
    ledger = Ledger()
    with charged_key(Run.at(tmp_path / "a"), ledger, bound(seed=1)) as key:
        key.reserve(ledger, Gaussian(2.0), 1, "a sum", "train")
    with pytest.raises(RunError, match="another seed"), charged_key(Run.at(tmp_path / "b"), ledger, bound(seed=1)):
        pass


def test_what_diverged_has_ended(tmp_path: Path) -> None:
    run = Run.at(tmp_path)
    Key.new(bound()).keep(run)
    (run.private / "state").touch()
    with pytest.raises(Diverged, match="as if"), until_diverged(run, run.private / "state"):
        raise Diverged("as if")
    assert Key.read(run) is None
    assert not (run.private / "state").exists()
    with pytest.raises(Diverged, match="use another folder"), until_diverged(run):
        pass


def test_one_release_is_charged_before_it_is_drawn_and_loaded_afterwards(tmp_path: Path) -> None:
    run, ledger, drawn = Run.at(tmp_path), Ledger(), []

    def train(key: Key) -> dict[str, torch.Tensor]:
        assert [entry.count for entry in ledger.entries] == [1]
        drawn.append(torch.tensor([float(first(key.streams))]))
        if len(drawn) == 1:
            raise KeyboardInterrupt
        return {"weight": drawn[-1]}

    def release() -> dict[str, torch.Tensor]:
        return release_once(
            run, bound(), train, ledger, event=Gaussian(2.0), what="a sum", part="train", steps=1, hidden="state"
        )

    with pytest.raises(KeyboardInterrupt):
        release()
    found = [release() for _ in range(2)]
    assert len(drawn) == 2
    assert all(torch.equal(each["weight"], drawn[0]) for each in found)
    assert Key.read(run) is None
    assert len(ledger.entries) == 1


def test_a_finished_release_answers_for_its_own_settings_alone(tmp_path: Path) -> None:
    run, ledger = Run.at(tmp_path), Ledger(path=tmp_path / "ledger.json")

    def release(binding: Binding) -> dict[str, torch.Tensor]:
        return release_once(
            run,
            binding,
            lambda key: {"weight": torch.ones(1)},
            ledger,
            event=Gaussian(2.0),
            what="a sum",
            part="train",
            steps=1,
        )

    release(bound())
    assert torch.equal(release(bound())["weight"], torch.ones(1))
    for other in (replace(bound(), plan="another plan"), replace(bound(), seed=1)):
        with pytest.raises(RunError, match="finished run with other settings"):
            release(other)
