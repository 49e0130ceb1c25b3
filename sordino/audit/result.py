"""The result of an audit: a lower bound beside the claimed and the sound ε, tests, and the verdict."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from sordino.budget import finite, printed

CONSISTENT, VIOLATED = "consistent", "violated"
SHARE = 0.2
"""The headline errs with probability 1 − confidence. The bounds of all parts together, the bound from a run's own
canaries, and all tests together may each err with this share of it in addition."""
WIDE_DELTA = 0.01
"""An event has an ε at every δ, and at a large δ far fewer trials show a violation."""


@dataclass(frozen=True)
class Finding:
    """A test of something the plan promises: the probability of what was seen if the promise holds."""

    name: str
    p_value: float
    seen: str
    about_sound: bool = True
    """False for a test of the claim only, on which the sound ε does not depend."""


@dataclass(frozen=True)
class ReleaseBound:
    """The lower bound from one release of the workflow, beside its claimed and sound ε at one δ."""

    name: str
    delta: float
    lower_bound: float
    claimed_epsilon: float
    sound_epsilon: float


@dataclass(frozen=True)
class Audit:
    """`verdict` is about the claimed ε, `sound_verdict` about the sound one; without a separate claim they agree.

    An ε is violated if a lower bound exceeds it, or if a test of its assumptions fails.

    Guarantee: for correct code that happens with probability at most (1 − confidence)·(1 + 3·SHARE), the sum over the
    headline, the parts, the run's own canaries and the tests.
    """

    lower_bound: float
    confidence: float
    claimed_epsilon: float
    sound_epsilon: float
    delta: float
    runs: int
    parts: tuple[ReleaseBound, ...] = ()
    findings: tuple[Finding, ...] = ()
    one_run_lower_bound: float | None = None
    canaries: int = 0
    last_weights_at_least: float | None = None
    """For weight distributions: a calculated lower bound on the ε of the final weights alone, for some record."""
    statistic: str | None = None
    """For black-box audits: the statistic that distinguished the outputs best."""
    epsilon_if_gaussian: float | None = None
    """For black-box audits: a lower bound on ε if that statistic is normal; no verdict rests on it."""
    notes: tuple[str, ...] = ()

    @property
    def side_confidence(self) -> float:
        """The confidence of all parts together, and of the bound from a run's own canaries."""
        return 1 - SHARE * (1 - self.confidence)

    @property
    def test_level(self) -> float:
        """A finding fails if its p-value is below this."""
        return (1 - self.confidence) * SHARE / max(1, len(self.findings))

    def failed(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.p_value < self.test_level)

    @property
    def verdict(self) -> str:
        beaten = self._largest() > self.claimed_epsilon
        beaten |= any(part.lower_bound > part.claimed_epsilon for part in self.parts)
        return VIOLATED if beaten or self.failed() else CONSISTENT

    @property
    def sound_verdict(self) -> str:
        if self.sound_epsilon == math.inf:  # nothing is promised, so nothing is broken
            return CONSISTENT
        beaten = self._largest() > self.sound_epsilon
        beaten |= any(part.lower_bound > part.sound_epsilon for part in self.parts)
        beaten |= any(finding.about_sound for finding in self.failed())
        return VIOLATED if beaten else CONSISTENT

    def _largest(self) -> float:
        return max(self.lower_bound, self.one_run_lower_bound or 0.0)

    def report(self) -> str:
        """The text that `sordino audit` prints."""
        sure = f"{100 * self.confidence:g} %"
        sound, claimed = (f"ε = {printed(epsilon)}" for epsilon in (self.sound_epsilon, self.claimed_epsilon))
        lines = [f"lower bound   ε ≥ {self.lower_bound:.3f} with {sure} confidence, from {self.runs:,} trials"]
        verdicts = [f"verdict       claimed ε: {self.verdict}"]
        if self.statistic is not None:  # of any training nothing is known but the claim
            lines.append(f"claimed       {claimed} at δ={self.delta:g}")
        else:
            lines += [f"sound         {sound} at δ={self.delta:g}", f"claimed       {claimed}"]
            verdicts.insert(0, f"verdict       sound ε: {self.sound_verdict}")
        if self.last_weights_at_least is not None:
            lines.append(f"last weights  ε ≥ {self.last_weights_at_least:.4g} for some record, by calculation")
        if self.one_run_lower_bound is not None:
            surer = f"{100 * self.side_confidence:g} %"
            bound = f"ε ≥ {self.one_run_lower_bound:.3f} with {surer} confidence, from {self.canaries:,} canaries"
            lines.append(f"this training {bound}")
        if self.statistic is not None:
            lines.append(f"statistic     {self.statistic}")
        if self.epsilon_if_gaussian is not None:
            lines.append(f"if normal     ε ≥ {self.epsilon_if_gaussian:.3f}: an assumption, on which no verdict rests")
        for part in self.parts:
            beside = f"sound {printed(part.sound_epsilon)}, claimed {printed(part.claimed_epsilon)} at δ={part.delta:g}"
            lines.append(f"  {part.name}: ε ≥ {part.lower_bound:.3f}, {beside}")
        failed = self.failed()
        for finding in self.findings:
            missed = f"FAILED, p={finding.p_value:.2g} is below {self.test_level:.2g}"
            lines.append(f"  {finding.name}: {missed if finding in failed else 'passed'} ({finding.seen})")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join([*lines, *verdicts])

    def to_json(self) -> dict[str, Any]:
        failed = self.failed()
        content = asdict(self)
        content["findings"] = [asdict(finding) | {"passed": finding not in failed} for finding in self.findings]
        content["test_level"] = self.test_level
        for figures in (content, *content["parts"]):
            figures.update({name: finite(figures[name]) for name in ("claimed_epsilon", "sound_epsilon")})
        return content | {"verdict": self.verdict, "sound_verdict": self.sound_verdict}
