"""Arbitrary events for property tests."""

import math

from hypothesis import strategies as st

from sordino.budget import (
    Composed,
    Except,
    FixedSizeGaussian,
    Gaussian,
    Iteration,
    Laplace,
    LogisticPerturbation,
    NonPrivate,
    PoissonGaussian,
    Pure,
    RepeatAndSelect,
    Repeated,
    ShuffledGaussian,
)

positive = st.floats(1e-30, 1e30) | st.integers(1, 10**30)
rates = st.floats(1e-30, 1.0)
counts = st.integers(1, 10**6)

leaves = st.one_of(
    st.builds(Gaussian, positive),
    st.builds(PoissonGaussian, rates, positive),
    st.builds(lambda n, share, s: FixedSizeGaussian(n, max(1, int(share * n)), s), counts, st.floats(0, 1), positive),
    st.builds(ShuffledGaussian, counts, positive),
    st.builds(Laplace, positive),
    st.builds(Pure, positive),
    st.builds(LogisticPerturbation, positive, positive),
    st.builds(Iteration, counts, counts, positive),
    st.just(NonPrivate()),
)
shapes = st.floats(0, 1e30) | st.just(math.inf)
events = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(Repeated, inner, st.integers(0, 10**12)),
        st.builds(Composed, st.lists(inner, max_size=4).map(tuple)),
        st.builds(RepeatAndSelect, inner, st.floats(1, 1e30), shapes),
        st.builds(Except, inner, st.floats(1e-30, 1, exclude_max=True)),
    ),
    max_leaves=8,
)
