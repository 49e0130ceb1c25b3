"""Keyed randomness: every random number of a run is a function of a secret key, a stream and a step.

So a step lost in a crash can be repeated bit for bit, which releases nothing new; two streams, two steps or two runs
never share a number. The generator is AES-128 in counter mode (FIPS 197, SP 800-38A) with the key of the streams, by
`randomgen`: telling its numbers from random ones means breaking AES. NumPy's own generators promise no such thing, and
torch's CPU generator would keep 32 bits of the key.
"""

import hashlib
import hmac
import json
import os
from enum import IntEnum
from sys import getrefcount
from threading import Lock
from typing import Any, NoReturn
from weakref import WeakSet

import numpy as np
from randomgen import AESCounter

from sordino.budget import Event, Ledger

GENERATOR = "AES-128-CTR, noise of statistics on a grid"
"""What turns a key into noise. Unfinished work is bound to it: under another name a lost step is not repeated."""

_KEY_BYTES = 16
_STEP_BITS = 60


class Stream(IntEnum):
    """What a random number is for; each purpose has a separate range of the counter."""

    INITIALISATION = 0
    SAMPLING = 1
    AUGMENTATION = 2
    NOISE = 3


class StreamsError(ValueError):
    """Streams whose numbers another holder of the key could draw too."""


class Streams:
    """The random generators under one key, for one object in one process.

    Guarantee: no second holder of the key. Streams are neither copied nor pickled, and a forked child (a data-loader
    worker too) loses the key: two holders that step differently would add the same noise to different sums.

    Streams know whether anyone can predict them, and whatever charges a release of theirs says so in the ledger. A key
    that is passed in counts as known unless the caller vouches for it: forgetting that states too little privacy, never
    too much.
    """

    def __init__(self, key: bytes, *, predictable: bool = True) -> None:
        if len(key) != _KEY_BYTES:
            raise ValueError(f"a key has {_KEY_BYTES} bytes, not {len(key)}")
        self._key = int.from_bytes(key, "little")
        self._process = os.getpid()
        self._cipher = _Cipher(self._key)
        _LIVING.add(self)
        self.predictable = predictable
        _no_core_dumps()

    @classmethod
    def fresh(cls) -> "Streams":
        """Under a fresh key from the operating system."""
        return cls(os.urandom(_KEY_BYTES), predictable=False)

    def generator(self, stream: Stream, step: int = 0) -> np.random.Generator:
        """The generator of one stream at one step; asking again gives the same numbers again."""
        if not 0 <= step < 2**_STEP_BITS:
            raise ValueError(f"a step is a whole number from 0 and below 2^{_STEP_BITS}, not {step}")
        self.check_process()
        # Drawing advances the low word of the counter; step and stream sit in the high one, out of its reach.
        return self._cipher.generator(int(stream) << _STEP_BITS | step)

    def check_process(self) -> None:
        """Refuse a process that was forked after the key was drawn: its parent has the same numbers before it."""
        if self._process != os.getpid():
            raise StreamsError(
                "this process was forked from the one that holds the key of the noise, and may not draw with it: "
                "fork first, then start the training in the child"
            )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise StreamsError("the key of the noise is not copied or pickled: two copies would add the same noise twice")

    def __repr__(self) -> str:
        return "Streams(<secret>)"


class _Cipher:
    """Generators of one key: it is expanded once, and a counter that is no longer in use is reset.

    To make an `AESCounter` takes longer than a small step's noise. Guarantee: no two holders share one: it is used
    again only if no generator, nor anything else, has a reference to it.
    """

    def __init__(self, key: int) -> None:
        self._key, self._lock = key, Lock()
        self._spare: AESCounter | None = None
        self._unheld = 0
        """References to a spare that is not in use, as counted where they are compared."""

    def generator(self, high: int) -> np.random.Generator:
        """As if made anew with this high word of the counter."""
        with self._lock:
            if self._spare is None or self._references() != self._unheld:
                self._spare = AESCounter(key=self._key)
                self._unheld, self._start = self._references(), self._spare.state
            self._start["s"]["counter"][1::2] = high  # of the four blocks that are enciphered together
            self._spare.state = self._start
            return np.random.Generator(self._spare)

    def _references(self) -> int:
        return getrefcount(self._spare)


_LIVING: WeakSet[Streams] = WeakSet()


def _lose_keys() -> None:
    """A forked child may not draw.

    That is against mistakes: the child's memory is a copy of its parent's, and traces of the key stay in it.
    """
    for streams in _LIVING:
        streams._key, streams._process, streams._cipher = 0, -1, _Cipher(0)


os.register_at_fork(after_in_child=_lose_keys)


def _no_core_dumps() -> None:
    """A crash must not write the key to the disk; of this process and its children, from the first key on."""
    try:
        import resource
    except ImportError:  # not on Windows, which has none
        return
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    # One byte, not none: Linux then keeps the dump from a program in core_pattern too, which has no limit otherwise.
    resource.setrlimit(resource.RLIMIT_CORE, (min(1, hard) if hard >= 0 else 1, hard))


def charge(
    ledger: Ledger, event: Event, what: str, part: str, streams: Streams | None, *, run: str = "", paid: bool = False
) -> Streams:
    """Charge a release to the ledger, and return the streams to draw its noise from: fresh ones unless some are given.

    Every mechanism calls this before it reads the data, and takes `ledger, what, part, streams` for it, each in its own
    signature. The ledger notes streams that anyone can predict. A release
    that is `paid` was charged before and is repeated.
    """
    streams = Streams.fresh() if streams is None else streams
    if not paid:
        ledger.spend(event, what, part, seeded=streams.predictable, run=run)
    return streams


def new_secret() -> bytes:
    """A secret for one run, from the operating system."""
    return os.urandom(_KEY_BYTES)


def secret_from_seed(seed: int) -> bytes:
    """A secret that anyone can recompute: for tests and experiments, and the statement must say so."""
    return hashlib.sha256(f"sordino experiment {seed}".encode()).digest()[:_KEY_BYTES]


def bound_streams(secret: bytes, facts: dict[str, Any], *, predictable: bool) -> Streams:
    """Streams under a key that holds for exactly these facts: change one and every number changes.

    They are predictable if the secret is: one from a seed.
    """
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Streams(hmac.new(secret, text.encode(), hashlib.sha256).digest()[:_KEY_BYTES], predictable=predictable)


def data_tag(secret: bytes, *arrays: np.ndarray) -> str:
    """A keyed fingerprint of data: without the secret it does not even confirm a guess, as a plain hash would."""
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    for array in arrays:
        mac.update(f"{array.dtype.str}{array.shape}".encode())
        mac.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return mac.hexdigest()
