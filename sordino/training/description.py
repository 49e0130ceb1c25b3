"""run.json: what a run was asked for, its plan, and the public facts that it needs to do without its dataset."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sordino.budget import check_delta, check_target
from sordino.data import Facts
from sordino.runs import Run, RunError
from sordino.training.plan import Plan, plan_from_json
from sordino.training.recipes import DatasetRecipe, check_name, recipe
from sordino.training.weight_distributions import WeightDistributionPlan


@dataclass(frozen=True)
class Request:
    """What the user asked for; a run goes on only for the same request."""

    dataset: str
    recipe: str
    epsilon: float
    delta: float
    seed: int | None = None
    canaries: int = 0
    """Synthetic records that take part for an audit."""
    exact: bool = False
    """Whether the noise of training is drawn exactly, on a public grid (`Plan.exact`)."""

    def __post_init__(self) -> None:
        if not (isinstance(self.dataset, str) and isinstance(self.recipe, str)):
            raise ValueError("a dataset and a recipe are named by words")
        if self.seed is not None and type(self.seed) is not int:
            raise ValueError(f"a seed is a whole number, not {self.seed!r}")
        if type(self.canaries) is not int or self.canaries < 0 or self.canaries == 1:
            raise ValueError(f"canaries are a whole number, none or at least two, not {self.canaries!r}")
        check_target(self.epsilon)
        check_delta(self.delta)
        check_name(self.recipe)


@dataclass(frozen=True)
class Description:
    """The content of run.json."""

    status: str
    request: Request
    plan: Plan | WeightDistributionPlan
    facts: Facts
    statement: dict[str, Any]
    """Words for the privacy statement: unit, tuning, notes."""

    @property
    def recipe(self) -> DatasetRecipe:
        return recipe(self.request.recipe, self.request.dataset, self.facts)

    def write(self, run: Run) -> None:
        content = {"kind": "training", "status": self.status, "request": asdict(self.request)}
        content |= {"recipe": self.recipe.to_json(), "plan": self.plan.to_json(), "facts": self.facts.to_json()}
        content |= {"statement": self.statement}
        run.write_description(content)

    @classmethod
    def read(cls, run: Run) -> "Description":
        document = run.read_description()
        try:
            return cls(
                str(document["status"]),
                Request(**document["request"]),
                plan_from_json(document["plan"]),
                Facts.from_json(document["facts"]),
                {name: document["statement"][name] for name in ("unit", "tuning", "notes")},
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RunError(f"run.json in {run.folder} is of another version of sordino") from None


def request_of(folder: str | Path) -> Request:
    """What the unfinished run in a folder was asked for."""
    return Description.read(Run(folder)).request
