"""Audits err with a small probability: under a key of their own these tests always see the same."""

import itertools
import zlib

import pytest

from sordino.mechanisms.streams import Streams, secret_from_seed


@pytest.fixture(autouse=True)
def _keyed(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    calls = itertools.count()

    def keyed(cls: type[Streams]) -> Streams:
        return cls(secret_from_seed(zlib.crc32(f"{request.node.name} {next(calls)}".encode())))

    monkeypatch.setattr(Streams, "fresh", classmethod(keyed))
