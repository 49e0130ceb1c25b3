import contextlib
import json
import math
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.budget import (
    Composed,
    Event,
    Except,
    FixedSizeGaussian,
    Gaussian,
    Iteration,
    Laplace,
    Ledger,
    LogisticPerturbation,
    NonPrivate,
    PoissonGaussian,
    Pure,
    RepeatAndSelect,
    Repeated,
    ShuffledGaussian,
    UnsupportedEvent,
    cost,
)
from sordino.budget.events import composed, from_json, leaves, to_json
from sordino.budget.events.base import ADJACENCIES, check_adjacency, check_delta, delta_besides_exceptions

from ..strategies import events

numbers = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
documents = st.recursive(
    numbers,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.sampled_from(["type", "event", "events", "count", "mean"]), inner)
    ),
    max_leaves=10,
)
TYPES = [
    "gaussian",
    "poisson-gaussian",
    "fixed-size-gaussian",
    "shuffled-gaussian",
    "laplace",
    "pure",
    "iteration",
    "non-private",
    "repeated",
    "composed",
    "repeat-and-select",
    "except",
]


@given(events)
def test_an_event_survives_json(event):
    text = json.dumps(to_json(event), allow_nan=False)
    assert from_json(json.loads(text)) == event


@given(events)
def test_every_event_is_hashable_and_described(event):
    assert hash(event) == hash(from_json(to_json(event)))
    assert event.describe()


@given(documents)
def test_arbitrary_json_is_an_event_or_a_value_error(document):
    try:
        event = from_json(document)
    except ValueError:
        return
    assert from_json(to_json(event)) == event


@given(st.sampled_from(TYPES), st.dictionaries(st.text(max_size=3), documents, max_size=2), st.data())
def test_right_fields_with_wrong_values_are_value_errors(kind, more, data):
    known = {"gaussian": Gaussian(1.0), "pure": Pure(1.0), "repeated": Repeated(Gaussian(1.0), 2)}
    known |= {"composed": Composed((Gaussian(1.0),)), "repeat-and-select": RepeatAndSelect(Gaussian(1.0), 2.0)}
    known |= {"iteration": Iteration(1, 1, 1.0), "laplace": Laplace(1.0), "non-private": NonPrivate()}
    known |= {"poisson-gaussian": PoissonGaussian(0.1, 1.0), "shuffled-gaussian": ShuffledGaussian(2, 1.0)}
    known |= {"fixed-size-gaussian": FixedSizeGaussian(2, 1, 1.0), "except": Except(Gaussian(1.0), 0.1)}
    known |= {"logistic-perturbation": LogisticPerturbation(1.0, 0.5)}
    document = to_json(known[kind]) | more
    for field in set(document) - {"type"}:
        document[field] = data.draw(documents)
    with contextlib.suppress(ValueError):
        from_json(document)


@pytest.mark.parametrize("value", [5, None, "abc", True, 1.5, {"type": "gaussian", "noise_multiplier": 1.0}])
def test_composed_of_no_list_is_refused(value):
    with pytest.raises(ValueError, match=r"."):
        from_json({"type": "composed", "events": value})


def test_nesting_is_bounded_wherever_an_event_comes_from():
    document: dict = to_json(Gaussian(1.0))
    for _ in range(100_000):
        document = {"type": "repeated", "event": document, "count": 1}
    with pytest.raises(ValueError, match="nested"):
        from_json(document)
    event = Gaussian(1.0)
    for _ in range(32):
        event = Repeated(event, 1)
        assert from_json(to_json(event)) == event  # whatever can be built can be read back
    with pytest.raises(UnsupportedEvent, match="nested"):
        Repeated(event, 1)
    while document:  # freed from the outside in: the interpreter frees nested dictionaries by recursion
        document = document.pop("event", {})


def test_deeply_shared_events_are_built_quickly():
    event = Gaussian(1.0)
    for _ in range(25):
        event = Composed((event, event))  # 2^25 leaves if it were walked
    assert isinstance(event, Composed)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Gaussian(0.0),
        lambda: Gaussian(-1.0),
        lambda: Gaussian(math.nan),
        lambda: Gaussian(math.inf),
        lambda: Gaussian(1e-300),
        lambda: Gaussian(1e300),
        lambda: Gaussian(10**400),
        lambda: Gaussian(True),
        lambda: Gaussian("1"),
        lambda: PoissonGaussian(0.0, 1.0),
        lambda: PoissonGaussian(1.0000001, 1.0),
        lambda: PoissonGaussian(math.nan, 1.0),
        lambda: FixedSizeGaussian(10, 11, 1.0),
        lambda: FixedSizeGaussian(10, 0, 1.0),
        lambda: FixedSizeGaussian(10.0, 5, 1.0),
        lambda: ShuffledGaussian(0, 1.0),
        lambda: Laplace(0),
        lambda: LogisticPerturbation(0, 1.0),
        lambda: LogisticPerturbation(1.0, 0),
        lambda: Pure(0),
        lambda: Pure(math.inf),
        lambda: Iteration(0, 1, 1.0),
        lambda: Iteration(1, 0, 1.0),
        lambda: Repeated(Gaussian(1.0), -1),
        lambda: Repeated(Gaussian(1.0), 1.0),
        lambda: Repeated(Gaussian(1.0), True),
        lambda: Repeated("gaussian", 1),
        lambda: Repeated(Gaussian, 1),
        lambda: Composed((Gaussian(1.0), None)),
        lambda: Composed(None),
        lambda: RepeatAndSelect(Gaussian(1.0), 0.5),
        lambda: RepeatAndSelect(Gaussian(1.0), 2.0, -1.0),
        lambda: RepeatAndSelect(Gaussian(1.0), 2.0, math.nan),
        lambda: RepeatAndSelect(Gaussian(1.0), math.inf),
        lambda: Except(Gaussian(1.0), 0.0),
        lambda: Except(Gaussian(1.0), 1.0),
        lambda: Except(Gaussian(1.0), math.nan),
        lambda: Except("gaussian", 0.1),
    ],
)
def test_meaningless_parameters_are_refused(build):
    with pytest.raises(ValueError, match=r"."):
        build()


@pytest.mark.parametrize("delta", [0, 1, -1e-5, 1.5, math.nan, "1e-5", None])
def test_delta_lies_strictly_between_0_and_1(delta):
    with pytest.raises(ValueError, match="delta"):
        check_delta(delta)


def test_an_unknown_adjacency_is_refused():
    with pytest.raises(ValueError, match="zero-out"):
        check_adjacency("substitution")


def test_leaves_multiply_counts_and_join_equal_events():
    step = PoissonGaussian(0.1, 2.0)
    event = Composed((Repeated(Composed((step, Gaussian(3.0))), 5), step, Repeated(Pure(1.0), 0)))
    assert leaves(event) == {step: 6, Gaussian(3.0): 5}
    assert leaves(Composed(())) == {}
    assert leaves(Repeated(Composed(()), 7)) == {}


@pytest.mark.parametrize(("steps", "epochs"), [(0, 0), (1, 1), (10, 1), (11, 2), (95, 10)])
def test_begun_epochs_of_shuffled_batches_count_in_full(steps, epochs):
    step = ShuffledGaussian(10, 1.0)
    assert leaves(Repeated(step, steps)).get(step, 0) == epochs


def test_separate_shuffled_runs_do_not_share_an_epoch():
    step = ShuffledGaussian(10, 1.0)
    assert leaves(Composed((Repeated(step, 5), Repeated(step, 5)))) == {step: 2}
    assert leaves(Repeated(Repeated(step, 5), 3)) == {step: 3}
    assert leaves(step) == {step: 1}


def test_counts_beyond_exact_floating_point_are_refused():
    event = Repeated(Repeated(Gaussian(1.0), 2**40), 2**40)
    with pytest.raises(UnsupportedEvent, match="2\\^53"):
        leaves(event)


def test_composed_wraps_only_what_needs_it():
    assert composed([Gaussian(1.0)]) == Gaussian(1.0)
    assert composed([]) == Composed(())
    assert composed([Gaussian(1.0), Pure(1.0)]) == Composed((Gaussian(1.0), Pure(1.0)))


@settings(max_examples=20)
@given(events)
def test_leaves_are_elementary(event):
    try:
        found = leaves(event)
    except UnsupportedEvent:
        return
    assert all(not isinstance(leaf, Composed | Repeated | Except) for leaf in found)
    assert all(leaf.exceptions() == 0 for leaf in found)
    assert all(count > 0 for count in found.values())


def test_the_probabilities_of_exceptions_add_up():
    rare = Except(Gaussian(2.0), 1e-7)
    assert Gaussian(2.0).exceptions() == Composed(()).exceptions() == Repeated(rare, 0).exceptions() == 0
    assert Composed((Repeated(rare, 3), Except(rare, 2e-7), Pure(1.0))).exceptions() == pytest.approx(6e-7)
    assert Repeated(RepeatAndSelect(Repeated(rare, 2), 10.0), 5).exceptions() == pytest.approx(1e-5)
    assert leaves(Composed((Repeated(rare, 3), Gaussian(2.0)))) == {Gaussian(2.0): 4}
    assert delta_besides_exceptions(Repeated(rare, 3), 1e-6) == pytest.approx(7e-7)
    for delta in (3e-7, 1e-7):
        with pytest.raises(UnsupportedEvent, match=r"3e-07.*larger δ"):
            delta_besides_exceptions(Repeated(rare, 3), delta)


def test_shuffled_steps_with_exceptions_share_no_epoch():
    """Each is a mechanism of its own, inside a selection too."""
    step = ShuffledGaussian(10, 1.0)
    assert leaves(Repeated(Except(step, 1e-9), 5)) == {step: 5}
    (selected,) = leaves(RepeatAndSelect(Repeated(Except(step, 1e-9), 5), 2.0))
    assert leaves(selected.event) == {step: 5}


@dataclass(frozen=True)
class Rounded(Event, name="test-rounded"):
    """A family of a user's own: Gaussian noise, priced by RDP alone."""

    noise_multiplier: float

    def describe(self):
        return f"rounded, σ={self.noise_multiplier:g}"

    def rdp(self, adjacency, orders):
        return orders / (2 * self.noise_multiplier**2)


@dataclass(frozen=True)
class WithLosses(Rounded, name="test-with-losses"):
    """The same with a privacy loss distribution; grids start from the rough figures that RDP gives."""

    def losses(self, adjacency, interval):
        return Gaussian(self.noise_multiplier).losses(adjacency, interval)


@pytest.mark.parametrize("family", [Rounded, WithLosses])
def test_a_family_of_a_users_own_is_priced_written_and_read(family, tmp_path):
    event = Repeated(family(4.0), 3)
    assert from_json(json.loads(json.dumps(to_json(event)))) == event
    priced, gaussian = cost(event, 1e-5), cost(Repeated(Gaussian(4.0), 3), 1e-5)
    assert priced.rdp == gaussian.rdp
    assert priced.pld == (None if family is Rounded else pytest.approx(gaussian.pld, rel=1e-3))
    ledger = Ledger(5.0, 1e-5, path=tmp_path / "ledger.json")
    ledger.spend(event, "statistics")
    assert Ledger.open(ledger.path).entries[0].event == family(4.0)
    assert "σ=4" in ledger.statement()["entries"][0]["in_words"]


def test_a_name_is_taken_once_and_not_inherited():
    with pytest.raises(ValueError, match="another event named 'gaussian'"):

        class Impostor(Event, name="gaussian"):
            pass

    class Nameless(Gaussian):
        pass

    for build in (lambda: Repeated(Nameless(1.0), 2), lambda: to_json(Nameless(1.0)), lambda: to_json(Event())):
        with pytest.raises(UnsupportedEvent, match="not a privacy event"):
            build()


def test_an_event_without_a_price_is_refused():
    @dataclass(frozen=True)
    class Unpriced(Event, name="test-unpriced"):
        pass

    with pytest.raises(UnsupportedEvent, match="no accountant"):
        cost(Unpriced(), 1e-5)


def test_a_users_event_holds_under_zero_out_alone_unless_it_says_more(tmp_path):
    @dataclass(frozen=True)
    class Everywhere(Rounded, name="test-everywhere"):
        adjacencies = ADJACENCIES

    @dataclass(frozen=True)
    class OnlyPure(Event, name="test-only-pure"):
        def pure_epsilon(self, adjacency):
            return Fraction(1)

    for adjacency in ("replace-one", "add-remove"):
        for event in (Rounded(4.0), WithLosses(4.0), OnlyPure(), RepeatAndSelect(Rounded(4.0), 2.0)):
            with pytest.raises(UnsupportedEvent, match="zero-out only"):
                cost(event, 1e-5, adjacency)
            ledger = Ledger(50.0, 1e-5, adjacency=adjacency)
            with pytest.raises(UnsupportedEvent):
                ledger.spend(event, "statistics")
            assert not ledger.entries
        assert cost(Everywhere(4.0), 1e-5, adjacency).epsilon > 0
    assert cost(OnlyPure(), 1e-5).epsilon == 1


def test_a_negative_price_is_refused():
    @dataclass(frozen=True)
    class Negative(Event, name="test-negative"):
        def rdp(self, adjacency, orders):
            return -1.0 * orders

    @dataclass(frozen=True)
    class NegativePure(Event, name="test-negative-pure"):
        def pure_epsilon(self, adjacency):
            return Fraction(-1)

    for event in (Negative(), NegativePure()):
        for each in (event, Repeated(event, 1000), Composed((Gaussian(1.0), event))):
            with pytest.raises(UnsupportedEvent, match=r"negative|no accountant"):
                cost(each, 1e-5)
            with pytest.raises(UnsupportedEvent):
                Ledger(1.0, 1e-5).spend(each, "statistics")
    with pytest.raises(UnsupportedEvent, match="negative Rényi divergence"):
        cost(Negative(), 1e-5)


def test_an_event_is_a_frozen_dataclass():
    class Plain(Event, name="test-plain"):
        def rdp(self, adjacency, orders):
            return 0 * orders

    @dataclass
    class Thawed(Plain, name="test-thawed"):
        pass

    for event in (Plain(), Thawed()):
        with pytest.raises(UnsupportedEvent, match=r"@dataclass\(frozen=True\)"):
            Ledger(1.0, 1e-5).spend(event, "statistics")
        with pytest.raises(UnsupportedEvent, match=r"@dataclass\(frozen=True\)"):
            to_json(event)
