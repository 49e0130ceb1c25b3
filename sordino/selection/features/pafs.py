"""PAFS: genetic search with the score of a privately trained model as fitness, every trial charged."""

from dataclasses import dataclass

import numpy as np

from sordino.budget import Event, Ledger
from sordino.selection.features.genetic import Breeding, Fitness, Found, Parents, Scores, Tournament, evolve
from sordino.selection.features.merit import Mask

PAFS_BREEDING = Breeding(population=600)


@dataclass(frozen=True)
class Trial:
    """What trying one subset costs: a training on the train part, and a noisy score on the validation part.

    Without a score event the validation records are public.
    """

    training: Event
    score: Event | None = None


def pafs(
    fitness: Fitness,
    features: int,
    generator: np.random.Generator,
    *,
    trial: Trial | None = None,
    ledger: Ledger | None = None,
    most_trials: int | None = None,
    breeding: Breeding = PAFS_BREEDING,
    parents: Parents = Tournament(),  # noqa: B008 (frozen)
) -> Found:
    """The subset of the best score that a genetic search finds; scores are of validation records, never of test ones.

    Guarantee: every different subset is one training of `trial.training` on the part "train" and one score of
    `trial.score` on the part "validation". Room for `most_trials` of them (by default for all that could come up) is
    reserved before the first, so that they are priced as planned; each is counted before it is run. The fitness must
    do what the trial says and charge nothing itself; what it tells may all be shown. Without a ledger nothing is
    charged: then the records must be public, or the result labelled "selection not private".
    """
    if (ledger is None) != (trial is None):
        raise ValueError("a ledger needs to know what a trial costs, and a trial's cost a ledger: give both or neither")
    most = breeding.population * (breeding.generations + 1) if most_trials is None else most_trials
    if most < 1:
        raise ValueError(f"a search needs at least one trial, not {most}")
    if ledger is None or trial is None:
        return evolve(fitness, features, breeding, parents, generator, most)
    ledger.refuse_add_remove()
    entries = [ledger.begin(trial.training, most, "PAFS: trainings", "train")]
    if trial.score is not None:
        entries.append(ledger.begin(trial.score, most, "PAFS: scores", "validation"))
    done = 0

    def charged(masks: Mask) -> Scores:
        nonlocal done
        done += len(masks)
        for entry in entries:
            ledger.raise_count(entry, done)
        return fitness(masks)

    return evolve(charged, features, breeding, parents, generator, most)
