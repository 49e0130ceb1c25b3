"""Keyed randomness: every random number of a run is a function of a secret key, a stream and a step.

A step that a crash has lost can so be repeated bit for bit, which releases nothing new; two streams, two steps or two
runs never share a number. NumPy's Philox takes a 128-bit key; torch's CPU generator would keep 32 bits of it.
"""

import hashlib
import hmac
import json
import os
from enum import IntEnum
from typing import Any

import numpy as np

_KEY_BYTES = 16


class Stream(IntEnum):
    """What a random number is for; each purpose counts in a space of its own."""

    INITIALISATION = 0
    SAMPLING = 1
    AUGMENTATION = 2
    NOISE = 3


class Streams:
    """The random generators under one key."""

    def __init__(self, key: bytes) -> None:
        if len(key) != _KEY_BYTES:
            raise ValueError(f"a key has {_KEY_BYTES} bytes, not {len(key)}")
        self._key = int.from_bytes(key, "little")

    @classmethod
    def fresh(cls) -> "Streams":
        """Under a key of the operating system that nobody will know."""
        return cls(os.urandom(_KEY_BYTES))

    def generator(self, stream: Stream, step: int = 0) -> np.random.Generator:
        """The generator of one stream at one step; asking again gives the same numbers again."""
        if not 0 <= step < 2**63:
            raise ValueError(f"a step is a whole number from 0, not {step}")
        # Drawing advances the low words of the counter; step and stream sit above, out of its reach.
        counter = np.array([0, 0, step, int(stream)], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=self._key, counter=counter))

    def __repr__(self) -> str:
        return "Streams(<secret>)"


def new_secret() -> bytes:
    """A secret for one run, from the operating system."""
    return os.urandom(_KEY_BYTES)


def secret_from_seed(seed: int) -> bytes:
    """A secret that anyone can recompute: for tests and experiments, and the statement must say so."""
    return hashlib.sha256(f"sordino experiment {seed}".encode()).digest()[:_KEY_BYTES]


def bound_streams(secret: bytes, facts: dict[str, Any]) -> Streams:
    """Streams under a key that holds for exactly these facts: change one and every number changes."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Streams(hmac.new(secret, text.encode(), hashlib.sha256).digest()[:_KEY_BYTES])


def data_tag(secret: bytes, *arrays: np.ndarray) -> str:
    """A keyed fingerprint of data: without the secret it does not even confirm a guess, as a plain hash would."""
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    for array in arrays:
        mac.update(f"{array.dtype.str}{array.shape}".encode())
        mac.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return mac.hexdigest()
