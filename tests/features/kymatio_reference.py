"""Writes kymatio_reference.npz: what kymatio 0.3.0 gives for the images of `images()`.

To be run in an environment of its own, with numpy, scipy and kymatio, whose import fails with today's SciPy unless a
function that two-dimensional scattering does not use is put in its place.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CASES = {"digit": (28, 28, 2), "picture": (32, 32, 2), "odd": (17, 23, 3), "deep": (16, 16, 4), "flat": (33, 29, 1)}
PATH = Path(__file__).with_name("kymatio_reference.npz")


def images(case: str) -> NDArray[np.float32]:
    """Two images of noise and edges."""
    height, width, scales = CASES[case]
    generator = np.random.default_rng(scales * 1000 + height)
    noise = generator.random((2, height, width))
    edges = (np.indices((height, width)).sum(0) % 7 < 3)[None]
    return (0.5 * noise + edges).astype(np.float32)


if __name__ == "__main__":
    import scipy.special

    scipy.special.sph_harm = None
    from kymatio.numpy import Scattering2D

    found = {}
    for case, (height, width, scales) in CASES.items():
        for order in (1, 2):
            transform = Scattering2D(J=scales, shape=(height, width), L=8, max_order=order)
            found[f"{case}-{order}"] = transform(images(case).astype(np.float64)).astype(np.float32)
    np.savez_compressed(PATH, **found)
