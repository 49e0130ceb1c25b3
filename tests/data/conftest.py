"""Named datasets for the tests: loaded once a process, skipped only where they truly cannot be had."""

import os
from functools import cache
from pathlib import Path

import pytest

from sordino.data import DataError, Dataset, fetch, load, locate
from sordino.data.named import DATA_VARIABLE

ALWAYS = ("mnist", "mnist-5k", "digits")
FOLDER = os.environ.get(DATA_VARIABLE, "")


@cache
def _load(name: str) -> Dataset | str:
    """With the environment the tests were started in, whatever the present test has made of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATA_VARIABLE, FOLDER)
        try:
            return load(name)
        except DataError as error:
            if name in ALWAYS or locate(name):
                raise
            return str(error)


@pytest.fixture(scope="session")
def named():
    """A function that gives a named dataset."""

    def get(name: str) -> Dataset:
        loaded = _load(name)
        if isinstance(loaded, str):
            pytest.skip(loaded)
        return loaded

    return get


@pytest.fixture(scope="session")
def folder_of(named):
    """A function that gives the folder of a named dataset."""

    def get(name: str) -> Path:
        named(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(DATA_VARIABLE, FOLDER)
            return fetch(name) if name in ALWAYS else locate(name)

    return get


@pytest.fixture
def closed_network(monkeypatch):
    """A network that refuses every connection at once."""
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for variable in ("no_proxy", "NO_PROXY", DATA_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
