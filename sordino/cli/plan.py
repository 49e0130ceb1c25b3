"""`sordino plan`: noise, steps or ε from the other two; a whole setting; or the price of weight distributions."""

import json
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.recommend import recommend as print_recommendation
from sordino.cli.weight_distributions import print_prices

# Accountants take a second to import: commands that need none should not wait for them.
if TYPE_CHECKING:
    from sordino.budget import Event


class Accountant(StrEnum):
    PLD = "pld"
    RDP = "rdp"
    RDP_CLASSIC = "rdp-classic"


class Adjacency(StrEnum):
    ZERO_OUT = "zero-out"
    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"


class Conversion(StrEnum):
    OLD = "old"
    NEW = "new"


def plan(
    n: Annotated[int, typer.Option("--n", help="Number of records.", show_default=False)],
    delta: Annotated[float, typer.Option(help="δ of the guarantee.", show_default=False)],
    batch: Annotated[
        int | None, typer.Option(help="Expected batch size (Poisson sampling).", show_default=False)
    ] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="σ, in units of the clip.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Target ε.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps, instead of epochs.")] = None,
    accountant: Annotated[Accountant | None, typer.Option(help="Default: the tighter of PLD and RDP.")] = None,
    adjacency: Annotated[Adjacency, typer.Option(help="Which datasets are neighbours.")] = Adjacency.ZERO_OUT,
    conversion: Annotated[
        Conversion, typer.Option(help="Of rdp-classic: the papers of 2020 used the old one.")
    ] = Conversion.NEW,
    recommend: Annotated[
        bool, typer.Option("--recommend", help="Propose a whole setting from --n, --epsilon and --delta, with reasons.")
    ] = False,
    compute: Annotated[
        float | None, typer.Option(help="Of --recommend: example gradients that may be computed. Default: 40 epochs.")
    ] = None,
    memory: Annotated[float | None, typer.Option(help="Of --recommend: gigabytes for examples in work.")] = None,
    parameters: Annotated[
        int | None, typer.Option(help="Of --recommend: size of the model. Default: LSR's network, 25,386.")
    ] = None,
    public: Annotated[
        str | None, typer.Option(help="Of --recommend: a public dataset to measure sampling noise on, free of charge.")
    ] = None,
    weight_distributions: Annotated[
        bool,
        typer.Option("--weight-distributions", help="Price SI-DPSGD's noise in the weights: claimed and sound."),
    ] = False,
    learning_rate: Annotated[
        float | None, typer.Option(help="Of --weight-distributions. A constant one does not matter.")
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Of --weight-distributions. Default: 0.")] = None,
    decay: Annotated[
        float | None, typer.Option(help="Of --weight-distributions: the rate's factor after each epoch.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Solve for the third of noise multiplier, ε, and epochs or steps (give exactly two), or recommend a setting."""
    from sordino.budget import (
        PoissonGaussian,
        Repeated,
        calibration,
        check_delta,
        check_delta_against_draws,
        check_delta_against_n,
        steps_for,
    )

    if recommend:
        if epsilon is None:
            raise typer.BadParameter("--recommend needs --epsilon")
        if weight_distributions or {batch, noise_multiplier, epochs, steps, accountant} != {None}:
            raise typer.BadParameter(
                "--recommend takes --n, --epsilon and --delta, and of the rest only --compute, --memory, --parameters "
                "and --public"
            )
        if adjacency is not Adjacency.ZERO_OUT:
            raise typer.BadParameter("--recommend plans for zero-out adjacency")
        print_recommendation(n, epsilon, delta, compute, memory, parameters, public, as_json)
        return
    if {compute, memory, parameters, public} != {None}:
        raise typer.BadParameter("--compute, --memory, --parameters and --public go with --recommend")
    if {learning_rate, momentum, decay} != {None} and not weight_distributions:
        raise typer.BadParameter("--learning-rate, --momentum and --decay go with --weight-distributions")
    if batch is None:
        raise typer.BadParameter("give --batch, or --recommend to have one proposed")
    if epochs is not None and steps is not None:
        raise typer.BadParameter("give --epochs or --steps, not both")
    given = [noise_multiplier is not None, epsilon is not None, epochs is not None or steps is not None]
    if sum(given) != 2:
        raise typer.BadParameter("give exactly two of --noise-multiplier, --epsilon, and --epochs or --steps")
    if not (1 <= n <= 2**53 and 1 <= batch <= n):
        raise typer.BadParameter("--n must lie between 1 and 2^53, and --batch between 1 and n")
    if steps is not None and steps < 1:
        raise typer.BadParameter(f"--steps must be at least 1, not {steps}")
    check_delta_against_n(delta, n)
    price = _price(accountant, check_delta(delta), adjacency.value, conversion.value)
    rate = batch / n
    if steps is None and epochs is not None:
        steps = steps_for(epochs, n, batch)
    if weight_distributions:
        if steps is None or accountant is not None or adjacency is not Adjacency.ZERO_OUT:
            raise typer.BadParameter(
                "--weight-distributions takes --epochs or --steps, and --noise-multiplier or --epsilon; it prices by "
                "both accountants and for zero-out adjacency"
            )
        asked = {"learning_rate": learning_rate, "momentum": momentum, "decay": decay}
        rates = {name: value for name, value in asked.items() if value is not None}
        print_prices(n, batch, steps, delta, noise_multiplier, epsilon, as_json, **rates)
        return

    def event(sigma: float, count: int) -> "Event":
        return Repeated(PoissonGaussian(rate, sigma), count)

    match noise_multiplier, steps, epsilon:
        case None, int(count), float(target):
            check_delta_against_draws(delta, rate, count)
            sigma = calibration.noise_multiplier(lambda s: event(s, count), target, delta, adjacency.value, price)
        case float(sigma), None, float(target):
            count = calibration.steps(lambda t: event(sigma, t), target, price)
        case float(sigma), int(count), _:
            pass
    answer = _answer(event(sigma, count), price, accountant, delta, adjacency.value)
    answer |= {"noise_multiplier": sigma, "steps": count, "epochs": count * rate, "sample_rate": rate}
    typer.echo(json.dumps(answer, ensure_ascii=False) if as_json else _in_words(answer))


def _price(accountant: Accountant | None, delta: float, adjacency: str, conversion: str) -> Callable[["Event"], float]:
    from sordino.budget import check_adjacency, cost, rdp

    relation = check_adjacency(adjacency)
    match accountant:
        case Accountant.RDP:
            return lambda event: rdp.epsilon(event, delta, relation)
        case Accountant.RDP_CLASSIC:
            return lambda event: rdp.classic_epsilon(event, delta, relation, "old" if conversion == "old" else "new")
        case Accountant.PLD:
            return lambda event: _required(cost(event, delta, relation).pld)
        case None:
            return lambda event: cost(event, delta, relation).epsilon


def _required(value: float | None) -> float:
    if value is None:
        raise ValueError("PLD cannot price this at so small a δ; use --accountant rdp")
    return value


def _answer(
    event: "Event", price: Callable[["Event"], float], accountant: Accountant | None, delta: float, adjacency: str
) -> dict[str, Any]:
    from sordino.budget import cost

    both = cost(event, delta, adjacency)
    return {
        "epsilon": price(event),
        "delta": delta,
        "accountant": accountant.value if accountant else both.accountant,
        "epsilon_pld": both.pld,
        "epsilon_rdp": both.rdp,
        "adjacency": adjacency,
    }


def _in_words(answer: dict[str, Any]) -> str:
    from sordino.budget import printed

    return "\n".join(
        [
            f"ε                 {printed(answer['epsilon'], 5)} at δ={answer['delta']:g} ({answer['accountant']})",
            f"noise multiplier  {answer['noise_multiplier']:.5g}",
            f"steps             {answer['steps']:,} ({answer['epochs']:.4g} epochs)",
            f"sample rate       {answer['sample_rate']:.5g}, Poisson",
            f"accountants       PLD {printed(answer['epsilon_pld'], 5)}, RDP {printed(answer['epsilon_rdp'], 5)}",
            f"adjacency         {answer['adjacency']}",
        ]
    )
