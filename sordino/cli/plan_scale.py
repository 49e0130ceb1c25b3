"""`sordino plan --curve` and `--scale`: what they take, and their answers in words."""

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sordino import budget, training
from sordino.cli.arguments import show

if TYPE_CHECKING:
    from sordino.budget import PriceCurve
    from sordino.training import ScalePlan


class Along(StrEnum):
    SAMPLE_RATE = "sample-rate"
    DELTA = "delta"
    BATCH = "batch"


def show_curve(
    along: Along,
    n: int,
    delta: float,
    batch: int | None,
    noise_multiplier: float | None,
    epsilon: float | None,
    epochs: float | None,
    steps: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Print a curve, and draw it into a PNG where one is asked for."""
    if along is Along.SAMPLE_RATE:
        if epsilon is None or epochs is None or {batch, noise_multiplier, steps} != {None}:
            raise typer.BadParameter("--curve sample-rate takes --n, --delta, --epsilon and --epochs, and no --batch")
        curve = budget.curve_over_sample_rate(budget.spaced(max(1 / n, 1e-3), 1.0), epochs, epsilon, delta)
    else:
        if batch is None or noise_multiplier is None or epsilon is not None or (epochs is None) == (steps is None):
            raise typer.BadParameter(
                f"--curve {along} takes --n, --delta, --batch, --noise-multiplier, and --steps or --epochs"
            )
        if not 1 <= batch <= n:
            raise typer.BadParameter("--batch must lie between 1 and --n")
        count = steps if epochs is None else budget.steps_for(epochs, n, batch)
        if along is Along.DELTA:
            event = budget.Repeated(budget.PoissonGaussian(batch / n, noise_multiplier), count or 0)
            curve = budget.curve_over_delta(event, [delta * 10.0**power for power in range(2, -7, -1) if delta < 0.01])
        else:
            batches = list(dict.fromkeys(round(each) for each in budget.spaced(batch, n)))
            curve = budget.curve_over_batch(n, batches, noise_multiplier / batch, count or 0, delta)
    if out is not None:
        curve.draw(out)
    answer = {**asdict(curve), "lines": {name: list(values) for name, values in curve.lines.items()}}
    show(answer, as_json, lambda: _curve_in_words(curve, out))


def _curve_in_words(curve: "PriceCurve", out: Path | None) -> str:
    rows = [[f"{x:.4g}", *map(_figure, values)] for x, *values in zip(curve.points, *curve.lines.values(), strict=True)]
    lines = [[curve.x, *curve.lines], *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([curve.title, "", *table, *(["", f"drawn: {out}"] if out else [])])


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def show_scale(
    n: int,
    delta: float,
    epsilon: float | None,
    epochs: float | None,
    batch: int | None,
    model: str,
    image: int,
    devices: int,
    device: str | None,
    throughput: float | None,
    memory: float | None,
    price: float | None,
    as_json: bool,
) -> None:
    """Print what a training at this scale takes, and where its speed is known from."""
    if epsilon is None or epochs is None:
        raise typer.BadParameter("--scale needs --n, --delta, --epsilon and --epochs")
    if device is not None and throughput is not None:
        raise typer.BadParameter("give --device or --throughput, not both")
    network, shape = training.scale_model(model), (3, image, image)
    work = training.work_of(network, shape)
    if throughput is not None:
        speed, known_from = throughput, "as given by --throughput"
    elif device is not None:
        speed = training.throughput_of(device, work)
        stated = training.DEVICES[device]
        known_from = (
            f"reckoned: half of the {stated.teraflops:g} TFLOP/s that its maker states ({stated.source}); not measured"
        )
        memory = stated.gigabytes if memory is None else memory
    else:
        speed, known_from = training.throughput_here(network, shape), "measured on this machine, gradients alone"
    held = None if memory is None else memory * 1e9
    found = training.plan_for_scale(
        n, epsilon, delta, work, speed, epochs=epochs, batch=batch, devices=devices, memory=held, price=price
    )
    answer = {
        **asdict(found),
        **{name: getattr(found, name) for name in ("epochs", "pieces", "hours", "money")},
        "model": model,
        "image": image,
        "work": asdict(work),
        "throughput_known_from": known_from,
    }
    show(answer, as_json, lambda: "\n".join(_scale_in_words(found, answer)))


def _scale_in_words(found: "ScalePlan", answer: dict[str, Any]) -> Sequence[str]:
    batch, pieces, devices = found.expected_batch_size, found.pieces, found.devices
    held = "give --memory to know how it is cut into pieces"
    if pieces is not None:
        held = f"{pieces:,} piece{'s' * (pieces > 1)} of up to {found.physical_batch:,} on each device (estimated)"
    spent = found.cost
    return [
        f"ε                 {budget.printed(spent.epsilon, 5)} at δ={found.delta:g} ({spent.accountant})",
        f"steps             {found.steps:,} ({found.epochs:.4g} epochs)",
        f"batch             {batch:,} of {found.n:,}, Poisson; {held}",
        f"noise multiplier  {found.noise_multiplier:.5g}",
        f"model             {answer['model']}: {answer['work']['parameters']:,} weights, "
        f"{answer['work']['operations'] / 1e9:.3g} GFLOP for a forward pass of {answer['image']}×{answer['image']}",
        f"speed             {found.throughput:.4g} private examples a second on a device",
        f"                  ({answer['throughput_known_from']})",
        f"time              {found.hours:,.3g} hours on {devices:,} device{'s' * (devices > 1)}, "
        f"{3600 * found.hours / found.steps:,.3g} s a step: an estimate, without waiting for data or each other",
        "cost              "
        + (
            "give --price, of a device for an hour" if found.money is None else f"{found.money:,.2f} at {found.price:g}"
        ),
    ]
