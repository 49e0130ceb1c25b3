"""Keyed randomness: repeatable under one key, unrelated under any other."""

import copy
import os
import pickle
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from randomgen import AESCounter

from sordino.budget import Ledger
from sordino.mechanisms.contingency import PairTables
from sordino.mechanisms.gaussian import clipped_gaussian_sum
from sordino.mechanisms.moments import ChannelMoments, SecondMoments, ThresholdQuantiles
from sordino.mechanisms.quantile import private_bounds, private_quantile
from sordino.mechanisms.streams import (
    Stream,
    Streams,
    StreamsError,
    bound_streams,
    data_tag,
    new_secret,
    secret_from_seed,
)
from sordino.mechanisms.trials import noisy_accuracy

keys = st.binary(min_size=16, max_size=16)
places = st.tuples(st.sampled_from(Stream), st.integers(0, 2**40))


def numbers(streams: Streams, stream: Stream, step: int, count: int = 64) -> np.ndarray:
    return streams.generator(stream, step).integers(0, 2**63, count)


@given(keys, places)
def test_asking_again_gives_the_same_numbers(key: bytes, place: tuple[Stream, int]) -> None:
    assert np.array_equal(numbers(Streams(key), *place), numbers(Streams(key), *place))


@given(keys, st.lists(places, min_size=2, max_size=6, unique=True))
def test_two_places_share_no_number(key: bytes, chosen: list[tuple[Stream, int]]) -> None:
    drawn = np.concatenate([numbers(Streams(key), *place) for place in chosen])
    assert len(np.unique(drawn)) == len(drawn)


@given(st.lists(keys, min_size=2, max_size=4, unique=True))
def test_two_keys_share_no_number(chosen: list[bytes]) -> None:
    drawn = np.concatenate([numbers(Streams(key), Stream.NOISE, 0) for key in chosen])
    assert len(np.unique(drawn)) == len(drawn)


def test_the_generator_is_aes_in_counter_mode() -> None:
    for text, block, wanted in (
        # NIST SP 800-38A, F.5.1, and FIPS 197, appendix C.1.
        ("2b7e151628aed2a6abf7158809cf4f3c", "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", "ec8cdf7398607cb0f2d21675ea9ea1e4"),
        ("000102030405060708090a0b0c0d0e0f", "00112233445566778899aabbccddeeff", "69c4e0d86a7b0430d8cdb78070b4c55a"),
    ):
        number, counter = (int.from_bytes(bytes.fromhex(part), "little") for part in (text, block))
        assert AESCounter(key=number, counter=counter).random_raw(2).astype("<u8").tobytes().hex() == wanted
    key = bytes(range(16))
    ours = Streams(key).generator(Stream.NOISE, 5).bit_generator
    same = AESCounter(key=int.from_bytes(key, "little"), counter=(3 << 60 | 5) << 64)
    assert np.array_equal(ours.random_raw(1000), same.random_raw(1000))  # type: ignore[attr-defined]


def test_generators_that_are_held_never_share_a_counter() -> None:
    """And one that takes the place of another, which nobody holds, starts as if it were new."""
    streams = Streams(bytes(range(16)))

    def anew(step: int) -> np.random.Generator:
        return np.random.Generator(AESCounter(key=int.from_bytes(bytes(range(16)), "little"), counter=step << 64))

    def given(step: int) -> np.random.Generator:
        return streams.generator(Stream.INITIALISATION, step)

    held = [given(step) for step in range(5)]
    wanted = [anew(step) for step in range(5)]
    for _ in range(3):
        for one, other in zip(held, wanted, strict=True):
            assert np.array_equal(one.normal(size=7), other.normal(size=7))
            assert one.integers(9, dtype=np.uint32) == other.integers(9, dtype=np.uint32)  # half of a word is kept
    only_bits, other = given(7).bit_generator, np.random.Generator(given(8).bit_generator)
    for step in range(20):
        assert given(step).integers(2**60) == anew(step).integers(2**60)
        given(step).integers(9, dtype=np.uint32)
    assert np.array_equal(only_bits.random_raw(3), anew(7).bit_generator.random_raw(3))
    assert np.array_equal(other.normal(size=3), anew(8).normal(size=3))
    assert len({id(one.bit_generator) for one in [*held, other]} | {id(only_bits)}) == 7


def test_threads_never_share_a_counter() -> None:
    streams = Streams(bytes(range(16)))

    def drawn(step: int) -> list[int]:
        return [int(streams.generator(Stream.NOISE, step).integers(2**60, size=50).sum()) for _ in range(100)]

    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(drawn, range(8)):
            assert len(set(found)) == 1


def test_streams_know_whether_they_can_be_predicted() -> None:
    assert Streams(bytes(16)).predictable  # unless somebody vouches for the key
    assert Streams(secret_from_seed(1)).predictable
    assert not Streams.fresh().predictable
    assert not Streams(new_secret(), predictable=False).predictable
    assert bound_streams(secret_from_seed(1), {}, predictable=True).predictable
    assert not bound_streams(new_secret(), {}, predictable=False).predictable


def test_every_release_from_predictable_streams_says_so_in_the_ledger() -> None:
    rows, codes = np.ones((8, 2)), np.zeros((8, 2), dtype=int)
    releases: list[Callable[[Ledger, Streams | None], object]] = [
        lambda ledger, streams: clipped_gaussian_sum(rows, 1.0, 2.0, ledger, "sum", streams=streams),
        lambda ledger, streams: noisy_accuracy(rows[:, 0] > 0, 2.0, ledger, "score", "validation", streams),
        lambda ledger, streams: private_bounds(rows, ledger, 1.0, [(0.0, 2.0)] * 2, streams=streams),
        lambda ledger, streams: private_quantile(rows[:, 0], 0.5, (0.0, 2.0), 1.0, ledger, "median", streams=streams),
        lambda ledger, streams: PairTables((2, 2), 3.0).release(codes, ledger, streams=streams),
        lambda ledger, streams: SecondMoments(1.0, 3.0).release(rows, ledger, streams=streams),
        lambda ledger, streams: ChannelMoments(1.0, 1.0).release(rows, rows, ledger, streams=streams),
        lambda ledger, streams: ThresholdQuantiles((0.1, 9.0), (0.1, 9.0), 1.0).release(
            rows, rows, ledger, streams=streams
        ),
    ]
    for release in releases:
        for streams in (Streams(secret_from_seed(1)), None):
            release(ledger := Ledger(), streams)
            assert [entry.seeded for entry in ledger.entries] == [streams is not None]


def test_a_long_draw_does_not_run_into_the_next_step() -> None:
    streams = Streams(bytes(16))
    first = streams.generator(Stream.NOISE, 0).integers(0, 2**63, 200_000)
    second = streams.generator(Stream.NOISE, 1).integers(0, 2**63, 200_000)
    assert len(np.intersect1d(first, second)) == 0


def test_every_fact_changes_the_key() -> None:
    secret, facts = new_secret(), {"plan": "a", "era": 0, "environment": {"threads": 2}}
    base = numbers(bound_streams(secret, facts, predictable=False), Stream.NOISE, 0)
    for change in ({"plan": "b"}, {"era": 1}, {"environment": {"threads": 1}}):
        assert not np.array_equal(
            base, numbers(bound_streams(secret, facts | change, predictable=False), Stream.NOISE, 0)
        )
    again = bound_streams(secret, dict(reversed(facts.items())), predictable=False)
    assert np.array_equal(base, numbers(again, Stream.NOISE, 0))


def test_secrets_are_fresh_and_seeds_are_not() -> None:
    assert new_secret() != new_secret()
    assert secret_from_seed(3) == secret_from_seed(3) != secret_from_seed(4)


def test_the_tag_of_data_needs_the_secret_and_sees_every_change() -> None:
    rows, labels = np.arange(12.0).reshape(3, 4), np.arange(3)
    tag = data_tag(b"s", rows, labels)
    assert tag == data_tag(b"s", rows.copy(), labels)
    assert tag != data_tag(b"t", rows, labels)
    assert tag != data_tag(b"s", rows.reshape(4, 3), labels)
    assert tag != data_tag(b"s", rows.astype(np.float32), labels)
    changed = rows.copy()
    changed[2, 3] += 1
    assert tag != data_tag(b"s", changed, labels)


def test_bad_keys_and_steps_are_refused_and_a_repr_tells_nothing() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        Streams(b"short")
    with pytest.raises(ValueError, match="whole number"):
        Streams(bytes(16)).generator(Stream.NOISE, -1)
    with pytest.raises(ValueError, match="whole number"):
        Streams(bytes(16)).generator(Stream.NOISE, 2**60)
    assert repr(Streams(bytes(range(16)))) == "Streams(<secret>)"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_streams_are_not_copied(copied: Callable[[Any], Any]) -> None:
    with pytest.raises(StreamsError, match="not copied or pickled"):
        copied(Streams.fresh())


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of torch's threads: the child does not use them
def test_a_forked_child_has_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams.fresh()
    child = os.fork()
    if child == 0:
        try:
            streams.generator(Stream.NOISE)
            os._exit(1)
        except StreamsError:
            os._exit(0 if streams._key == 0 and len(numbers(Streams.fresh(), Stream.NOISE, 0)) else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    numbers(streams, Stream.NOISE, 0)  # the parent goes on
    here = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)  # a fork that Python was not told of
    with pytest.raises(StreamsError, match="was forked"):
        streams.generator(Stream.NOISE)


def test_no_core_is_dumped_once_there_is_a_key() -> None:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    Streams.fresh()
    assert 0 <= resource.getrlimit(resource.RLIMIT_CORE)[0] <= 1
    resource.setrlimit(resource.RLIMIT_CORE, before)
