"""The house stays in order: files of a fair size, one name for one thing, no dead code, no positional splats."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest
from vulture import Vulture

import sordino

PACKAGE = Path(sordino.__file__).parent
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
STUBS = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.pyi"))}
EXCUSED = {
    "main": "typer calls it",
    "list_datasets": "typer calls it",
    "showwarning": "set on the module warnings",
    "category": "an argument that warnings gives",
    "process": "an argument that the pool gives",
    "protocol": "an argument that pickle gives",
    "is_causal": "an argument of torch's attention",
    "anchor": "an argument that autograd needs",
    "_check_input_dim": "torch calls it",
    "_get_name": "torch calls it",
    "_should_skip_dynamo": "torch reads it",
    "extra_repr": "torch calls it",
    "_batch": "held so that its identity cannot pass to another object",
    "standardised_convolution": "registered by its decorator",
    "instance_norm": "registered by its decorator",
    "recurrent": "registered by its decorator",
    "ADD_REMOVE": "an enum's value, chosen by its text",
    "OLD": "an enum's value, chosen by its text",
    "SIGMOID": "an enum's value, chosen by its text",
    "TANH": "an enum's value, chosen by its text",
    "of_private": "a constructor for users: projection onto private components",
    "not_private": "a constructor for users: the same without noise, charged as such",
    "output_perturbed": "a constructor for users: the other way to noise a convex model",
    "predict_proba": "a method for users: of what `sordino.load` gives",
    "why_these": "written to result.json with all fields",
    "noise_of_score": "written to result.json with all fields",
}


def dotted(path: Path) -> str:
    return ".".join(("sordino", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def exported() -> dict[tuple[str, str], str]:
    """(package, name) → the module that a stub takes the name from."""
    found = {}
    for path, tree in STUBS.items():
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    found[dotted(path), alias.name] = f"{dotted(path)}.{node.module or alias.name}"
    return found


def importers() -> dict[str, set[str]]:
    """Which modules import something that is defined in a module, by whatever door."""
    doors, found = exported(), defaultdict(set)
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sordino"):
                for alias in node.names:
                    module = node.module or ""
                    while (module, alias.name) in doors:
                        module = doors[module, alias.name]
                    found[module].add(dotted(path))
                    found[f"{module}.{alias.name}"].add(dotted(path))
    return found


def test_small_files_belong_to_their_only_importer() -> None:
    users = importers()
    for path in TREES:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if path.name not in ("__init__.py", "__main__.py") and len(users[dotted(path)] - {dotted(path)}) == 1:
            assert lines >= 40, f"{path} has {lines} lines and one importer: {users[dotted(path)]}"


@pytest.mark.parametrize("path", TREES, ids=dotted)
def test_arguments_are_not_splatted_by_position(path: Path) -> None:
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Call):
            literal = [each for each in node.args if isinstance(each, ast.Starred)]
            assert not any(isinstance(each.value, ast.Tuple | ast.List) for each in literal), f"line {node.lineno}"


def test_no_two_public_classes_have_one_name() -> None:
    homes = defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(dotted(path))
    assert not {name: where for name, where in homes.items() if len(where) > 1}


def test_nothing_is_dead() -> None:
    """What no code of ours uses is exported for users, or excused above with the reason."""
    watch = Vulture()
    watch.scavenge([PACKAGE])
    public = {name for _, name in exported()}
    unused = [item for item in watch.get_unused_code(min_confidence=60) if item.name not in public | set(EXCUSED)]
    assert [f"{Path(item.filename).relative_to(PACKAGE)}:{item.first_lineno} {item.name}" for item in unused] == []
