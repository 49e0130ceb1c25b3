"""Whether a privacy claim holds: empirical lower bounds on ε, and tests of sampler, noise and sensitivity."""

from sordino.audit.auditing import audit_plan, audit_recipe, audit_run
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
