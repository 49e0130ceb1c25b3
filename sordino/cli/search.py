"""`sordino search`: an architecture chosen within a budget; and what `sordino tune` prints as well."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from sordino.cli import arguments

if TYPE_CHECKING:
    from sordino.selection import Executor, SearchMethod, TrialResult


class SearchMethodName(StrEnum):
    paas = "paas"
    rs = "rs"
    mgrs = "mgrs"


class SpaceName(StrEnum):
    fcn = "fcn"
    cnn = "cnn"


def search(
    source: arguments.File,
    epsilon: arguments.Epsilon,
    delta: arguments.Delta,
    target: arguments.Target = None,
    schema: arguments.SchemaFile = None,
    method: Annotated[
        SearchMethodName, typer.Option(help="paas: genetic; rs: random; mgrs: generations of random search.")
    ] = SearchMethodName.rs,
    space: Annotated[SpaceName, typer.Option(help="Fully connected or convolutional networks.")] = SpaceName.fcn,
    mean_trials: arguments.MeanTrials = 10.0,
    generations: Annotated[int, typer.Option(min=1, help="Of paas and mgrs.")] = 3,
    population: Annotated[int, typer.Option(min=1, help="Of each generation of paas.")] = 10,
    freeze: Annotated[bool, typer.Option(help="Let layers be frozen at their random initial weights.")] = True,
    learning_rates: Annotated[str, typer.Option(help="To choose from, separated by commas.")] = "0.25,0.5,1,2",
    epochs: arguments.Epochs = 20.0,
    batch: arguments.Batch = None,
    clip: Annotated[float, typer.Option(help="L2 clip of a record's gradient.")] = 1.0,
    score_epsilon: arguments.ScoreEpsilon = None,
    workers: arguments.Workers = 1,
    ray: arguments.RayAddress = None,
    public: arguments.PublicSource = None,
    ledger: arguments.LedgerFile = None,
    seed: arguments.Seed = None,
    out: arguments.SearchFolder = None,
    as_json: arguments.Json = False,
) -> None:
    """Find a network for a table or dataset, and train it, within one budget."""
    from sordino.selection import (
        ConvolutionalSpace,
        DenseSpace,
        GenerationalSearch,
        GeneticSearch,
        RandomSearch,
        SearchRequest,
        search_within_budget,
    )

    methods: dict[SearchMethodName, Callable[[], SearchMethod]] = {
        SearchMethodName.paas: lambda: GeneticSearch(generations, population),
        SearchMethodName.rs: lambda: RandomSearch(mean_trials),
        SearchMethodName.mgrs: lambda: GenerationalSearch((mean_trials,) * generations),
    }
    spaces: dict[SpaceName, Any] = {SpaceName.fcn: DenseSpace, SpaceName.cnn: ConvolutionalSpace}
    rates = numbers(learning_rates, "--learning-rates")
    request = SearchRequest(
        methods[method](),
        spaces[space](learning_rates=rates, freezing=freeze),
        epochs,
        batch,
        l2_clip=clip,
        score_epsilon=score_epsilon,
    )
    with progress_shown() as (on_result, say):
        result = search_within_budget(
            source,
            request,
            epsilon=epsilon,
            delta=delta,
            target=target,
            schema=schema,
            public=public,
            ledger=ledger,
            out=out,
            executor=executor_for(workers, ray),
            seed=seed,
            on_result=on_result,
            say=say,
        )
    arguments.show(result, as_json, lambda: in_words(result))


@contextmanager
def progress_shown() -> Iterator[tuple[Callable[["TrialResult"], None], Callable[[str], None]]]:
    """Prints results that may be shown, and messages."""
    console = Console(stderr=True)

    def say(line: str) -> None:
        console.print(line, highlight=False)

    def show(result: "TrialResult") -> None:
        end = "diverged" if result.diverged else f"{100 * result.score:.1f} %"
        say(f"{result.candidate}: {end}")

    with console.status("running trials; hidden ones are not shown"):
        yield show, say


def in_words(result: dict[str, Any]) -> str:
    from sordino.budget import printed
    from sordino.runs import spending_in_words

    sizes = f"{result['parameters']:,} parameters, {result['trained_parameters']:,} of them trained"
    lines = [f"chosen: {result['in_words']} ({sizes})"]
    if result["diverged"]:
        lines.append("its training diverged, so there is no model: try smaller learning rates")
    score, noise = 100 * result["validation_accuracy"], 100 * result["noise_of_score"]
    best = "; biased upwards, as the best of several" * result["best_of_several"]
    lines.append(f"accuracy on the validation records: {score:.1f} % (noise ±{noise:.2g} %{best})")
    if result["test_accuracy"] is not None:
        lines.append(f"accuracy on the benchmark's public test records: {100 * result['test_accuracy']:.2f} %")
    lines.append(f"one training alone: ε={printed(result['epsilon_of_one_training'])}")
    if result["claimed_epsilon"] is not None:
        lines.append(f"the paper would claim ε={printed(result['claimed_epsilon'])} for this search, without a proof")
    return "\n".join([*lines, spending_in_words(result), f"model and statement: {result['run']}"])


def executor_for(workers: int, ray: str | None) -> "Executor":
    from sordino.selection import InProcess, OnRay, Processes

    if ray is not None:
        return OnRay(ray)
    return Processes(workers) if workers > 1 else InProcess()


def numbers(words: str, option: str) -> tuple[float, ...]:
    try:
        found = tuple(float(word) for word in words.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 < number < 1e9 for number in found):
        raise typer.BadParameter(f"give positive numbers separated by commas, not {words!r}", param_hint=option)
    return found
