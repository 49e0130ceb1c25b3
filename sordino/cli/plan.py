"""`sordino plan`: noise, steps or ε from the other two; a whole setting; or the price of weight distributions."""

from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino import budget, training  # rooms load what is used of them: no command waits for what it does not need
from sordino.cli.arguments import Json, show
from sordino.cli.plan_scale import Along, show_curve, show_scale

if TYPE_CHECKING:
    from sordino.budget import Event
    from sordino.training import Price, Recommendation

_GIGABYTE = 1e9


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
        Conversion, typer.Option(help="With rdp-classic; papers up to 2020 use the old one.")
    ] = Conversion.NEW,
    recommend: Annotated[
        bool, typer.Option("--recommend", help="Propose a whole setting from --n, --epsilon and --delta, with reasons.")
    ] = False,
    compute: Annotated[
        float | None, typer.Option(help="With --recommend: gradients of single examples to afford. Default: 40 epochs.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(help="With --recommend or --scale: gigabytes for a physical batch.")
    ] = None,
    parameters: Annotated[
        int | None, typer.Option(help="With --recommend: size of the model. Default: LSR's network, 25,386.")
    ] = None,
    public: Annotated[
        str | None, typer.Option(help="With --recommend: a public dataset to measure sampling noise on, at no cost.")
    ] = None,
    weight_distributions: Annotated[
        bool,
        typer.Option("--weight-distributions", help="Price SI-DPSGD's noise in the weights: claimed and sound."),
    ] = False,
    learning_rate: Annotated[
        float | None, typer.Option(help="With --weight-distributions; a constant one does not matter.")
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="With --weight-distributions. Default: 0.")] = None,
    decay: Annotated[
        float | None, typer.Option(help="With --weight-distributions: the rate's factor after each epoch.")
    ] = None,
    scale: Annotated[
        bool, typer.Option("--scale", help="Steps, noise, memory, hours and money of a training of images.")
    ] = False,
    model: Annotated[str, typer.Option(help="With --scale: resnet18, resnet50 or wrn-16-4.")] = "resnet18",
    image: Annotated[int, typer.Option(min=1, help="With --scale: side of the images, in pixels.")] = 224,
    devices: Annotated[int, typer.Option(min=1, help="With --scale: how many share a step.")] = 1,
    device: Annotated[
        str | None,
        typer.Option(help="With --scale: v100, a100, h100, tpu-v3 or tpu-v4, as stated. Default: time this machine."),
    ] = None,
    throughput: Annotated[
        float | None, typer.Option(help="With --scale: private examples a second on a device.")
    ] = None,
    hourly: Annotated[float | None, typer.Option("--price", help="With --scale: of a device for an hour.")] = None,
    curve: Annotated[
        Along | None, typer.Option(help="Print σ or ε along this setting, the others fixed.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --curve: a PNG to draw into.")] = None,
    as_json: Json = False,
) -> None:
    """Give two of noise multiplier, ε and epochs (or steps); prints the third. Or let it recommend a setting."""
    if (scale or curve) and [scale, curve is not None, recommend, weight_distributions].count(True) > 1:
        raise typer.BadParameter("give one of --scale, --recommend, --weight-distributions and --curve")
    if out is not None and curve is None:
        raise typer.BadParameter("--out goes with --curve")
    if {device, throughput, hourly} != {None} and not scale:
        raise typer.BadParameter("--device, --throughput and --price go with --scale")
    if curve is not None:
        budget.check_delta_against_n(delta, n)
        show_curve(curve, n, delta, batch, noise_multiplier, epsilon, epochs, steps, out, as_json)
        return
    if scale:
        if {noise_multiplier, steps, compute, parameters, public} != {None}:
            raise typer.BadParameter("--scale plans for --epsilon and --epochs; it takes --batch, --memory and --model")
        show_scale(n, delta, epsilon, epochs, batch, model, image, devices, device, throughput, memory, hourly, as_json)
        return
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
        held = None if memory is None else memory * _GIGABYTE
        size = _gradient_size(parameters, public)
        proposed = training.recommend(n, epsilon, delta, size, compute=compute, memory=held)
        show(_recommendation(proposed), as_json, lambda: _recommendation_in_words(proposed))
        return
    if {compute, memory, parameters, public} != {None}:
        raise typer.BadParameter("--compute, --memory, --parameters and --public go with --recommend")
    given = {"learning_rate": learning_rate, "momentum": momentum, "decay": decay}
    rates = {name: value for name, value in given.items() if value is not None}
    if rates and not weight_distributions:
        raise typer.BadParameter("--learning-rate, --momentum and --decay go with --weight-distributions")
    if batch is None:
        raise typer.BadParameter("give --batch, or --recommend to have one proposed")
    if epochs is not None and steps is not None:
        raise typer.BadParameter("give --epochs or --steps, not both")
    if [noise_multiplier is None, epsilon is None, epochs is None and steps is None].count(True) != 1:
        raise typer.BadParameter("give exactly two of --noise-multiplier, --epsilon, and --epochs or --steps")
    if not (1 <= n <= 2**53 and 1 <= batch <= n):
        raise typer.BadParameter("--n must lie between 1 and 2^53, and --batch between 1 and n")
    if steps is not None and steps < 1:
        raise typer.BadParameter(f"--steps must be at least 1, not {steps}")
    budget.check_delta_against_n(delta, n)
    price = _price(accountant, budget.check_delta(delta), adjacency.value, conversion.value)
    if epochs is not None:
        steps = budget.steps_for(epochs, n, batch)
    if weight_distributions:
        if steps is None or accountant is not None or adjacency is not Adjacency.ZERO_OUT:
            raise typer.BadParameter(
                "--weight-distributions takes --epochs or --steps, and --noise-multiplier or --epsilon; it prices by "
                "both accountants and for zero-out adjacency"
            )
        prices = training.weight_distribution_prices(
            n, batch, steps, delta, noise_multiplier=noise_multiplier, epsilon=epsilon, **rates
        )
        rows = {"n": n, "batch": batch, "steps": steps, "delta": delta, "prices": [asdict(row) for row in prices]}
        show(rows, as_json, lambda: _prices_in_words(prices, delta, rows["steps"]))
        return
    rate = batch / n

    def event(sigma: float, count: int) -> "Event":
        return budget.Repeated(budget.PoissonGaussian(rate, sigma), count)

    match noise_multiplier, steps, epsilon:
        case None, int(count), float(target):
            budget.check_delta_against_draws(delta, rate, count)
            sigma = budget.calibration.noise_multiplier(
                lambda s: event(s, count), target, delta, adjacency.value, price
            )
        case float(sigma), None, float(target):
            count = budget.calibration.steps(lambda t: event(sigma, t), target, price)
        case float(sigma), int(count), _:
            pass
    both = budget.cost(event(sigma, count), delta, adjacency.value)
    answer = {
        "epsilon": price(event(sigma, count)),
        "delta": delta,
        "accountant": accountant.value if accountant else both.accountant,
        "epsilon_pld": both.pld,
        "epsilon_rdp": both.rdp,
        "adjacency": adjacency.value,
        "noise_multiplier": sigma,
        "steps": count,
        "epochs": count * rate,
        "sample_rate": rate,
    }
    show(answer, as_json, lambda: _plan_in_words(answer))


def _price(accountant: Accountant | None, delta: float, adjacency: str, conversion: str) -> Callable[["Event"], float]:
    relation = budget.check_adjacency(adjacency)
    match accountant:
        case Accountant.RDP:
            return lambda event: budget.rdp.epsilon(event, delta, relation)
        case Accountant.RDP_CLASSIC:
            return lambda event: budget.rdp.classic_epsilon(
                event, delta, relation, "old" if conversion == "old" else "new"
            )
        case Accountant.PLD:
            return lambda event: _required(budget.cost(event, delta, relation).pld)
        case None:
            return lambda event: budget.cost(event, delta, relation).epsilon


def _required(value: float | None) -> float:
    if value is None:
        raise ValueError("PLD cannot price this at so small a δ; use --accountant rdp")
    return value


def _plan_in_words(answer: dict[str, Any]) -> str:
    printed = budget.printed
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


def _gradient_size(parameters: int | None, public: str | None) -> Any:
    """Gradients are assumed as long as the clip, or measured on a public dataset."""
    if parameters is not None and public is not None:
        raise typer.BadParameter("give --parameters or --public, not both: a measurement has a network of its own")
    if public is not None:
        return training.gradient_size_on(public, training.L2_CLIP)
    return training.GradientSize(training.LARGE_RATES["lsr-m1"].parameters if parameters is None else parameters)


def _recommendation(found: "Recommendation") -> dict[str, Any]:
    return {
        **asdict(found.chosen),
        "epochs": found.epochs,
        "l2_clip": found.l2_clip,
        "learning_rate": found.learning_rate,
        "momentum": found.momentum,
        "epsilon": found.cost.epsilon,
        "delta": found.delta,
        "accountant": found.cost.accountant,
        "root_law": found.root_law,
        "physical_batch": found.physical_batch,
        "reasons": list(found.reasons),
        "candidates": [asdict(each) for each in found.candidates],
    }


def _recommendation_in_words(found: "Recommendation") -> str:
    chosen, share_in_words = found.chosen, training.share_in_words
    lines = [
        f"ε                 {budget.printed(found.cost.epsilon, 5)} at δ={found.delta:g} ({found.cost.accountant})",
        f"sample rate       {chosen.sample_rate:.5g}, Poisson: {chosen.expected_batch_size:,} of {found.n:,} a step",
        f"noise multiplier  {chosen.noise_multiplier:.5g}",
        f"steps             {chosen.steps:,} ({found.epochs:.4g} epochs)",
        f"clip              {found.l2_clip:g}",
        f"learning rate     {found.learning_rate:g}, momentum {found.momentum:g}",
        f"accounted noise   {share_in_words(chosen.accounted_share)} of the variance of a step",
        "",
        *(f"- {reason}" for reason in found.reasons),
        "",
        f"along σ ≈ {found.root_law:.3g}·√rate, at the same ε and epochs:",
        "      rate        σ    steps  noise of the run  accounted",
    ]
    for each in found.candidates:
        excess, share = 100 * (each.excess_noise - 1), share_in_words(each.accounted_share)
        numbers = f"{each.sample_rate:10.4g} {each.noise_multiplier:8.4g} {each.steps:8,} {excess:+14.2f} % {share:>11}"
        lines.append(numbers + "  ←" * (each == chosen))
    return "\n".join([*lines, "(noise of the run: relative to full batches)"])


def _prices_in_words(prices: "list[Price]", delta: float, steps: Any) -> str:
    printed = budget.printed
    least = budget.rdp.classic_epsilon(budget.Composed(()), delta, "zero-out", "old")
    lines = [
        f"weight distributions, {steps:,} steps, ε at δ={delta:g}",
        f"{'sampling':12}{'noise':>10}{'claimed':>12}{'sound':>12}{'last weights':>15}",
    ]
    for price in prices:
        last = f"≥ {printed(price.last_weights_at_least, 4)}"
        sound, claimed = printed(price.sound, 4), printed(price.claimed, 4)
        lines.append(f"{price.sampling:12}{price.noise_multiplier:10.4g}{claimed:>12}{sound:>12}{last:>15}")
    return "\n".join(
        [
            *lines,
            "",
            "claimed: what the paper charges, as if each step's means were released: not sound (RDP, the old "
            f"conversion, whose orders give no less than {printed(least, 4)})",
            "sound: all weights drawn along the way, and so the last ones: what the ledger charges",
            "last weights: what they alone reveal at least of some record; not an upper bound",
        ]
    )
