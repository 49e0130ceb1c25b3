"""How much memory there is, and how much has been used at most."""

import resource
import sys
from pathlib import Path

import torch

_LIMIT, _USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")


def available(device: torch.device) -> float:
    """Bytes that may still be taken; infinity where nobody can tell."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    found = [float("inf")]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
        found.append(float(_LIMIT.read_text()) - float(_USED.read_text()))
    except (OSError, ValueError):  # another system, or no limit
        pass
    return min(found)


def peak(device: torch.device) -> float:
    """The most bytes that this process has held so far."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return float(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
