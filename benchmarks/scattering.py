"""Our scattering beside kymatio's, on the same images: `make bench-scattering`; ratios in interleaved rounds."""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import scipy.special
import torch

from sordino.features import Scattering

SHAPES = {"MNIST": (1, 28, 28), "CIFAR-10": (3, 32, 32)}
RECORD = Path("results/benchmarks/scattering.json")


def kymatio(shape: tuple[int, int]) -> Callable[[torch.Tensor], torch.Tensor]:
    # Version 0.3.0 imports a function of its spherical transform that SciPy no longer has.
    scipy.special.sph_harm = None
    from kymatio.torch import Scattering2D

    return Scattering2D(J=2, shape=shape)


def measure(images: int, rounds: int) -> list[dict[str, object]]:
    rows = []
    for name, (colours, *shape) in SHAPES.items():
        batch = torch.rand(images, colours, *shape, generator=torch.Generator().manual_seed(0))
        theirs, ours = kymatio((shape[0], shape[1])), Scattering()
        expected = theirs(batch[:50]).flatten(1, 2)
        deviation = float((ours(batch[:50]) - expected).abs().max())
        seconds: dict[str, list[float]] = {"sordino": [], "kymatio": []}
        for _ in range(rounds):
            for who, transform in (("sordino", ours), ("kymatio", theirs)):
                begun = time.perf_counter()
                for part in batch.split(500):
                    transform(part)
                seconds[who].append(time.perf_counter() - begun)
        ratio = statistics.median(t / o for t, o in zip(seconds["kymatio"], seconds["sordino"], strict=True))
        per_60k = {who: 60_000 / images * statistics.median(found) for who, found in seconds.items()}
        rows.append({"images": name, "seconds for 60,000": per_60k, "ratio": ratio, "deviation": deviation})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few images, no record")
    arguments = parser.parse_args()
    rows = measure(100, 2) if arguments.quick else measure(2000, 7)
    for row in rows:
        times = ", ".join(f"{who} {found:.1f} s" for who, found in row["seconds for 60,000"].items())
        print(f"{row['images']}: {times} for 60,000 images; kymatio ÷ ours {row['ratio']:.2f}")
    if not arguments.quick:
        facts = {"threads": torch.get_num_threads(), "torch": torch.__version__, "kymatio": version("kymatio")}
        RECORD.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
