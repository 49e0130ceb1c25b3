"""Whether a privacy claim holds: empirical lower bounds on ε, and tests of sampler, noise and sensitivity.

The room itself can be called: `sordino.audit(train, neighbours=(a, b), …)` is `black_box.audit`.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from sordino.audit.auditing import audit_plan, audit_recipe, audit_run
from sordino.audit.black_box import audit
from sordino.audit.final_weights import audit_final_weights
from sordino.audit.findings import Audit, Finding, Part
from sordino.audit.lower_bound import epsilon_lower_bound
from sordino.audit.noise import noise_test
from sordino.audit.one_run import one_run_lower_bound
from sordino.audit.sampler import sampler_test
from sordino.audit.sensitivity import sensitivity_probe
from sordino.audit.weight_distributions import SI_MNIST, audit_weight_distributions

__all__ = [
    "SI_MNIST",
    "Audit",
    "Finding",
    "Part",
    "audit",
    "audit_final_weights",
    "audit_plan",
    "audit_recipe",
    "audit_run",
    "audit_weight_distributions",
    "epsilon_lower_bound",
    "noise_test",
    "one_run_lower_bound",
    "sampler_test",
    "sensitivity_probe",
]


class _Room(ModuleType):
    """Importing the room sets `sordino.audit` to it, so that name is a function only if the room can be called."""

    def __call__(
        self,
        train: Callable[[Any], Any],
        neighbours: tuple[Any, Any],
        *,
        epsilon: float,
        delta: float,
        runs: int,
        confidence: float = 0.95,
        low_bits: bool = False,
    ) -> Audit:
        """See `sordino.audit.black_box.audit`."""
        return audit(
            train, neighbours, epsilon=epsilon, delta=delta, runs=runs, confidence=confidence, low_bits=low_bits
        )


sys.modules[__name__].__class__ = _Room
