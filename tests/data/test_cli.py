"""`sordino data`."""

import json

import pytest
from typer.testing import CliRunner

from sordino.cli.data import app
from sordino.data import DataError, locate, names

run = CliRunner().invoke


def test_list_names_every_dataset():
    done = run(app, ["list"])
    assert done.exit_code == 0
    for name in names():
        assert name in done.stdout


def test_list_as_json():
    datasets = json.loads(run(app, ["list", "--json"]).stdout)["datasets"]
    assert [entry["name"] for entry in datasets] == list(names())
    assert all(entry["source"] for entry in datasets)
    assert [entry["package"] for entry in datasets if entry["name"] == "digits"] == ["sklearn"]


def test_get_prints_the_folder(named):
    named("mnist")
    assert run(app, ["get", "mnist"]).stdout.strip() == str(locate("mnist"))
    done = json.loads(run(app, ["get", "digits", "--json"]).stdout)
    assert done["path"] == str(locate("digits"))
    assert done["complete"]
    assert done["n_train"] == 1437


def test_path(named):
    named("mnist")
    assert run(app, ["path", "mnist"]).stdout.strip() == str(locate("mnist"))
    assert json.loads(run(app, ["path", "mnist", "--json"]).stdout)["complete"] is True


def test_what_is_absent_is_one_line(closed_network, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sordino.data.named.user_cache_dir", lambda _: str(tmp_path))
    for command, said in (("path", "not on this machine; run `sordino data get"), ("get", "could not be fetched")):
        done = run(app, [command, "purchase-100"])
        assert isinstance(done.exception, DataError)
        assert said in str(done.exception)
        assert "\n" not in str(done.exception)


@pytest.mark.parametrize("command", ["path", "get"])
def test_unknown_name(command):
    assert "did you mean 'mnist'" in str(run(app, [command, "minst"]).exception)
