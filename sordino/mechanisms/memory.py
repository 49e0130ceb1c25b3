"""How much memory this process may still take, and a refusal, before a charge, of work that would not fit into it."""

import math
import resource
from collections.abc import Iterator
from pathlib import Path

_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


class NotEnoughMemory(ValueError):  # noqa: N818
    """Work that needs more memory than there is: refused before it is charged."""


def require(needed: float, what: str, remedy: str) -> None:
    """Refuse work that takes about so many bytes if they are not free; call it before the ledger is charged.

    `needed` must be a function of public sizes: a refusal is seen by everybody.
    """
    free = available()
    if needed > free:
        raise NotEnoughMemory(f"{what} needs about {_gib(needed)} of memory and {_gib(free)} are free: {remedy}")


def available() -> float:
    """Bytes that may still be taken: the least of what the system, its control groups and ulimit leave.

    Infinity where that is unknown.
    """
    return max(0.0, min([*_of_system(), *_of_groups(), *_of_limit(), math.inf]))


def _gib(size: float) -> str:
    return f"{size / 2**30:,.3g} GiB" if size >= 2**20 else f"{size / 2**10:,.3g} KiB"


def _of_system() -> Iterator[float]:
    found = _fields(_PROC / "meminfo").get("MemAvailable:")
    if found is not None:
        yield 1024 * found


def _of_groups() -> Iterator[float]:
    """Of this process's control group and of all that it lies in (version 2, then version 1)."""
    places = dict(line.split(":", 2)[1:] for line in _lines(_PROC / "self/cgroup") if line.count(":") >= 2)
    if "" in places:
        yield from _of_group(_CGROUP, places[""], ("memory.max", "memory.current", "inactive_file"))
    if "memory" in places:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        yield from _of_group(_CGROUP / "memory", places["memory"], names)


def _of_group(root: Path, place: str, names: tuple[str, str, str]) -> Iterator[float]:
    limit_name, used_name, cache_name = names
    folder = root / place.strip("/")
    # Within a container the process's own path is often that of the host: its root then stands for it.
    for at in {root, *(each for each in (folder, *folder.parents) if each.is_relative_to(root))}:
        limit, used = _number(at / limit_name), _number(at / used_name)
        if limit is not None and used is not None:
            # Pages of files that were not used lately are given back when memory is asked for.
            yield limit - used + _fields(at / "memory.stat").get(cache_name, 0.0)


def _of_limit() -> Iterator[float]:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = _fields(_PROC / "self/status").get("VmSize:")
    if limit != resource.RLIM_INFINITY and used is not None:
        yield limit - 1024 * used


def _number(path: Path) -> float | None:
    """None where there is no such file, or no limit ("max")."""
    lines = _lines(path)
    return float(lines[0]) if lines and lines[0].strip().isdigit() else None


def _fields(path: Path) -> dict[str, float]:
    """The lines "name number …" of a file."""
    words = (line.split() for line in _lines(path))
    return {each[0]: float(each[1]) for each in words if len(each) >= 2 and each[1].isdigit()}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):  # another system
        return []
