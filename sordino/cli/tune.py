"""`sordino tune`: learning rate and clip of one network, chosen within a budget."""

from typing import Annotated

import typer

from sordino.cli import arguments
from sordino.cli.search import executor_for, in_words, numbers, progress_shown


def tune(
    source: arguments.File,
    epsilon: arguments.Epsilon,
    delta: arguments.Delta,
    target: arguments.Target = None,
    schema: arguments.SchemaFile = None,
    hidden: Annotated[str, typer.Option(help="Widths of the hidden layers; empty: a linear model.")] = "",
    learning_rates: Annotated[str, typer.Option(help="To choose from, each divided by the clip.")] = "0.25,0.5,1,2,4",
    clips: Annotated[str, typer.Option(help="L2 clips to choose from.")] = "0.1,1",
    mean_trials: arguments.MeanTrials = 5.0,
    epochs: arguments.Epochs = 20.0,
    batch: arguments.Batch = None,
    score_epsilon: arguments.ScoreEpsilon = None,
    workers: arguments.Workers = 1,
    ray: arguments.RayAddress = None,
    public: arguments.PublicSource = None,
    ledger: arguments.LedgerFile = None,
    seed: arguments.Seed = None,
    out: arguments.SearchFolder = None,
    as_json: arguments.Json = False,
) -> None:
    """Choose learning rate and clip of one network privately, and train it, within one budget."""
    from sordino.selection import SearchRequest, search_within_budget, settings_search

    widths = numbers(hidden, "--hidden") if hidden.strip() else ()
    if any(width != int(width) for width in widths):
        raise typer.BadParameter(f"widths are whole numbers, not {hidden!r}", param_hint="--hidden")
    rates, bounds = numbers(learning_rates, "--learning-rates"), numbers(clips, "--clips")
    layers = [int(width) for width in widths]
    method, grid = settings_search(layers, rates, bounds, mean_trials, on_public=public is not None)
    # By name from each signature to the next, here as in `search` and `sordino.tune`: help and types come from those.
    with progress_shown() as (on_result, say):
        result = search_within_budget(
            source,
            SearchRequest(method, grid, epochs, batch, score_epsilon=score_epsilon),
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
