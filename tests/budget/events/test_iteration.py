import math

import numpy as np
import pytest

from sordino.budget import Iteration, cost, rdp


def test_the_formula_of_the_paper():
    """T&B D.3 (NOTES.md §1): RDP(α) = α·(2/σ²)·[(E−1)/S + 1/(S−j+1)] under replace-one, at place j."""
    event = Iteration(5, 100, 3.0)
    assert event.rho("replace-one", 0.99) == pytest.approx(2 / 9 * (4 / 100 + 1 / 2))
    assert event.rho("replace-one") == pytest.approx(2 / 9 * (4 / 100 + 1))
    assert rdp.rdp(event, "replace-one", (8.0,)) == pytest.approx([8 * 2 / 9 * 1.04])


def test_zeroing_out_costs_a_quarter():
    event = Iteration(5, 100, 3.0)
    assert event.rho("zero-out") == pytest.approx(event.rho("replace-one") / 4)


def test_the_ledger_charges_the_last_record():
    event = Iteration(3, 50, 2.0)
    everyone = event.rho("replace-one")
    shares = np.linspace(0.01, 1, 30)
    claims = [event.rho("replace-one", float(share)) for share in shares]
    assert claims == sorted(claims)
    assert max(claims) == everyone
    assert claims[0] < everyone


def test_one_step_is_one_gaussian_release():
    assert cost(Iteration(1, 1, 2.0), 1e-5, "replace-one").rdp == pytest.approx(
        rdp.epsilon(Iteration(1, 7, 2.0), 1e-5, "replace-one")
    )
    # the last record of a single epoch has nothing after it, so it pays for one Gaussian with sensitivity 2
    assert Iteration(1, 7, 2.0).rho("replace-one") == pytest.approx(2**2 / (2 * 2.0**2))


@pytest.mark.parametrize("share", [0, -0.1, 1.01, math.nan])
def test_shares_are_checked(share):
    with pytest.raises(ValueError, match="share"):
        Iteration(1, 10, 1.0).rho("zero-out", share)


def test_protecting_everyone_needs_more_noise_than_the_paper_claims():
    """With fewer than 100 steps an epoch, as in T&B Fig. 9, the 99 % are everyone; from 100 on they are not."""
    event = Iteration(10, 200, 1.0)
    assert event.rho("replace-one", 0.99) < 0.4 * event.rho("replace-one")
    assert Iteration(10, 97, 1.0).rho("replace-one", 0.99) == Iteration(10, 97, 1.0).rho("replace-one")
