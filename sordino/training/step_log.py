"""A step that is repeated after a kill must sum the same: a keyed fingerprint of each step's clipped sums says so."""

import hashlib
import hmac
import os
import re
from pathlib import Path

import torch
from torch import Tensor

from sordino.runs import Key, Run, RunError

_LINE = re.compile(rb"(\d+) (\d+) ([0-9a-f]{64})")


class StepLog:
    """For each step since the checkpoint, a keyed fingerprint of its clipped sums, written before their release.

    A step that is repeated must have the same: another sum under the same noise would be a second release. What follows
    the last line break was torn by a kill before its release, and is overwritten; any other bad line is damage.

    A line outlasts the process when `admits` returns, and a crash of the machine once `sync` has. Who shows weights
    after each step must therefore sync after each; `fit` does so when it is left, since within a block they show
    nowhere but in the process. A hook of the user's own that sends weights elsewhere within a block is not covered: if
    the machine then crashes and the program is changed, one step's noise may meet two sums.
    """

    def __init__(self, run: Run, key: Key) -> None:
        self._path, self._secret, self._era = step_log_file(run), bytes.fromhex(key.secret), key.era
        self._known: dict[int, str] = {}
        content = self._path.read_bytes() if self._path.exists() else b""
        self._end = content.rfind(b"\n") + 1
        self._new = True
        for line in content[: self._end].splitlines():
            found = _LINE.fullmatch(line)
            if found is None:
                raise RunError(
                    f"{self._path} is damaged: restore it from a backup, or start a new run in another folder"
                )
            if int(found[1]) == self._era:
                self._known[int(found[2])] = found[3].decode()

    def admits(self, step: int, l2_clip: float, shown: dict[str, Tensor]) -> bool:
        """Whether the step is new, which is then written down, or would show the same as before."""
        mac = hmac.new(self._secret, f"step {step} {l2_clip!r}".encode(), hashlib.sha256)
        for name in sorted(shown):
            value = shown[name].detach().cpu().contiguous()
            mac.update(repr((name, str(value.dtype), tuple(value.shape))).encode())
            mac.update(value.reshape(-1).view(torch.uint8).numpy().data)
        tag = mac.hexdigest()
        if step in self._known:
            return hmac.compare_digest(self._known[step], tag)
        self._append(f"{self._era} {step} {tag}\n".encode())
        self._known[step] = tag
        return True

    def _append(self, line: bytes) -> None:
        """Append a line, over whatever a kill has left of a torn one."""
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.truncate(self._end)
            file.seek(self._end)
            file.write(line)
        self._end += len(line)

    def sync(self) -> None:
        """On disk when this returns, the file's name too."""
        if not self._path.exists():
            return
        for path in (self._path, self._path.parent) if self._new else (self._path,):
            opened = os.open(path, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)
        self._new = False

    def clear(self) -> None:
        """After a checkpoint: none of these steps will be repeated."""
        self._path.unlink(missing_ok=True)
        self._known.clear()
        self._end, self._new = 0, True


def step_log_file(run: Run) -> Path:
    return run.private / "steps.log"
