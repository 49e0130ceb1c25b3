"""INS's sweeps by one network: epochs at a fixed ε, clip and learning rate, and noise in proportion to the batch."""

from dataclasses import replace
from typing import Any

from sordino.papers.declarations import Declaration
from sordino.papers.imagenet_scale.trainings import AVERAGES, PrivateTraining, tuned
from sordino.papers.records import Cell, Record, Series, as_text, percent
from sordino.papers.trials import Experiment
from sordino.training import Plan, tune_clip_and_rate

_REDUCED: dict[str, Any] = {"network": "pooled CNN", "records": 5000, "held_out": 1000}
_FULL: dict[str, Any] = {"network": "CNN", "records": 50_000, "held_out": 5000}
_DELTA = 1e-5


def _training(experiment: Experiment, item: Declaration, **more: Any) -> PrivateTraining:
    """What is varied, of the item's dataset and the size that this reproduction has."""
    size = experiment.pick(_REDUCED, _FULL) | {"batch": experiment.pick(500, 1024)}
    return PrivateTraining(**{"dataset": item.given["dataset"], "delta": _DELTA, "learning_rate": 1.0, **size, **more})


def longer(experiment: Experiment, item: Declaration) -> Record:
    """Figure 1 and Table 8. Published: the paper's epochs, and its accuracy at each of its three ε."""
    given = item.given
    rows: list[list[Cell]] = []
    lines = {epsilon: Series(f"ε={epsilon:g}", [], [], "here") for epsilon in given["budgets"]}
    theirs = {epsilon: Series(f"ε={epsilon:.3g}", [], [], "paper", points=True) for epsilon in given["paper_budgets"]}
    pairs = list(zip(given["epochs"], item.published, strict=True))
    for place, (epsilon, paper_epsilon) in enumerate(zip(given["budgets"], given["paper_budgets"], strict=True)):
        for epochs, (paper_epochs, *accuracies) in experiment.some(pairs, 1):
            trial = _training(experiment, item, epsilon=epsilon, epochs=epochs)
            rate, found = tuned(experiment, trial, given["rates"])
            lines[epsilon].add(epochs, [found["accuracy"]])
            theirs[paper_epsilon].add(paper_epochs, [accuracies[place] / 100])
            sigma, ours = found["noise_multiplier"], percent([found["accuracy"]])
            rows.append([paper_epsilon, paper_epochs, accuracies[place], epsilon, epochs, ours, rate, sigma, 1])
    series = [*lines.values(), *theirs.values()] if item.axes[0] else []
    return item.record(experiment, rows, series)


def clips(experiment: Experiment, item: Declaration) -> Record:
    """Figures 3 and 4: accuracy at each clip (a row, and a line) and learning rate (a column), for each σ (a panel)."""
    given = item.given
    rows: list[list[Cell]] = []
    series = []
    rates = experiment.some(given["rates"], 2)
    for sigma in given["noise"]:
        for clip in experiment.some(given["clips"], 2):
            line = Series(f"clip {clip:g}", [], [], f"σ={sigma:g}")
            for rate in rates:
                trial = _training(experiment, item, epochs=given["epochs"], l2_clip=clip, learning_rate=rate)
                found = experiment.run(replace(trial, noise_multiplier=sigma or None))
                line.add(rate, [found["accuracy"]])
            series.append(line)
            best = max(range(len(rates)), key=lambda place: line.y[place])
            found_at = [f"{each:.1f}" for each in line.y]
            rows.append([sigma, clip, *found_at, f"{line.y[best]:.1f}", rates[best], rates[best] * clip])
    columns = ["σ", "clip", *(f"rate {as_text(float(rate))}" for rate in rates), "best", "at rate", "rate·clip"]
    return item.record(experiment, rows, series, columns)


def batches(experiment: Experiment, item: Declaration) -> Record:
    """Tables 5 and 9: published are batch and epochs in thousands (of 1024), accuracy and ε, beside our batch and
    steps; σ is `noise` times the share of the records that a batch has."""
    rows: list[list[Cell]] = []
    n = _training(experiment, item, epochs=1).records
    for units, paper_epochs, theirs, paper_epsilon, share, steps in experiment.some(item.published, 2):
        batch = round(share * n)
        sigma = item.given["noise"] * share
        trial = _training(experiment, item, noise_multiplier=sigma, learning_rate=item.given["rate"], epochs=1)
        found = experiment.run(replace(trial, batch=batch, epochs=steps * batch / n))
        ours = percent([found["accuracy"]])
        rows.append([1024 * units, paper_epochs, paper_epsilon, theirs, batch, steps, sigma, found["epsilon"], ours, 1])
    return item.record(experiment, rows)


def averages(experiment: Experiment, item: Declaration) -> Record:
    """What Algorithm 1 returns, the mean of all iterates or the last one, beside a running average; not in a table."""
    given = item.given
    rows: list[list[Cell]] = []
    for epsilon in given["budgets"]:
        trial = _training(experiment, item, epsilon=epsilon, epochs=given["epochs"])
        for average in (None, *AVERAGES):
            rate, found = tuned(experiment, replace(trial, average=average), given["rates"])
            released = "the last iterate" if average is None else f"the mean of {average}"
            rows.append([epsilon, released, percent([found["accuracy"]]), rate, 1])
    return item.record(experiment, rows)


def procedure(experiment: Experiment, item: Declaration) -> Record:
    """Section 3.3: clip and rate by the four steps on public images, then a private training of others with them."""
    given = item.given
    private = _training(experiment, item, epsilon=given["epsilon"], epochs=given["epochs"])
    public = replace(private, dataset=given["public"], epsilon=None)

    def score(plan: Plan, rate: float) -> float:
        noise = plan.noise_multiplier or None
        trial = replace(public, l2_clip=plan.l2_clip, learning_rate=rate, noise_multiplier=noise)
        return float(experiment.run(trial)["held_out"])

    rates, clips = experiment.some(given["rates"]), experiment.some(given["clips"])
    found = tune_clip_and_rate(private.plan(private.records), score, learning_rates=rates, clips=clips)
    rows: list[list[Cell]] = [
        [each.step, each.l2_clip, each.learning_rate, each.noise_multiplier, percent([each.score]), None, None, 1]
        for each in found.tried
    ]
    ours = experiment.run(replace(private, l2_clip=found.l2_clip, learning_rate=found.learning_rate))
    _, beside = tuned(experiment, private, given["private_rates"])
    accuracies = [percent([each["accuracy"]]) for each in (ours, beside)]
    rows.append(["private", found.l2_clip, found.learning_rate, ours["noise_multiplier"], None, *accuracies, 1])
    return item.record(experiment, rows)
