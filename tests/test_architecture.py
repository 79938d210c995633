"""A module imports only from layers below its own, and files and functions stay small."""

import ast
import itertools
import re
from pathlib import Path

import pytest

import dynabound

SOURCE = Path(dynabound.__file__).parent
LAYERS = [
    {"_version", "_files", "_checks", "_extras", "_dtensor", "_drawing"},
    {"bounds"},
    {"_rule"},
    {"optim"},
    {"lens", "theory", "tuning"},
    {"integrations", "optax", "keras"},
    {"lab.errors"},
    {"lab.tasks"},
    {"lab.spec"},
    {"lab.training"},
    {"lab.checkpoints"},
    {"lab.store"},
    {"lab.train"},
    {"lab.engines"},
    {"lab.studies"},
    {"lab.ledger"},
    {"lab.report"},
    {"doctor"},
    {"cli"},
]
"""From the lowest to the highest. Packages of one layer do not import each other, except the private modules."""
LEVEL = {package: level for level, layer in enumerate(LAYERS) for package in layer}
MAX_LINES, MAX_FUNCTION, MAX_PARAMETERS, MAX_FILES = 450, 50, 12, 12


MODULES = [
    (".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"), path)
    for path in sorted(SOURCE.rglob("*.py"))
]


def package_of(module):
    """The innermost known package of a module; None for the package itself, which may export anything."""
    parts = module.split(".")
    return next((name for n in (2, 1) if (name := ".".join(parts[:n])) in LEVEL), None)


def imports(tree):
    """The dynabound modules that a module imports when it runs; not what only a type checker reads."""
    guards = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    checking = {id(child) for guard in guards for child in ast.walk(guard)}
    for node in ast.walk(tree):
        if id(node) in checking:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dynabound":
            base = node.module.removeprefix("dynabound").removeprefix(".")
            for alias in node.names:
                yield f"{base}.{alias.name}".removeprefix(".")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("dynabound."):
                    yield alias.name.removeprefix("dynabound.")


@pytest.mark.parametrize(("module", "path"), MODULES, ids=[name for name, _ in MODULES])
def test_imports_go_down(module, path):
    package = package_of(module)
    if package is None:
        return
    for imported in imports(ast.parse(path.read_text())):
        other = package_of(imported)
        if other is None or other == package:
            continue
        low = LEVEL[other] < LEVEL[package] or (LEVEL[other] == LEVEL[package] == 0)
        assert low, f"{module} (layer {LEVEL[package]}: {package}) imports {imported} (layer {LEVEL[other]}: {other})"


def test_every_package_has_a_layer():
    unknown = {module for module, _ in MODULES if package_of(module) is None}
    assert unknown <= {"", "__init__", "__main__", "lab"}, "give the new package a layer"


def test_the_page_has_the_layers():
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()
    start = page.index("## Layers")
    places = [sorted(page.index(f"`{name}`", start) for name in layer) for layer in LAYERS]
    assert all(above[-1] < below[0] for above, below in itertools.pairwise(places))


def test_the_page_names_files_that_exist():
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"\b\w+\.(?:py|c)\b", page))
    assert named - {path.name for path in SOURCE.rglob("*.*")} == {"test_architecture.py", "reference.py"}


@pytest.mark.parametrize(("module", "path"), MODULES, ids=[name for name, _ in MODULES])
def test_files_and_functions_are_small(module, path):
    text = path.read_text()
    assert text.count("\n") <= MAX_LINES, "does it have two reasons to exist?"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            body = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node):
                body -= node.body[0].end_lineno - node.body[0].lineno + 1
            assert body <= MAX_FUNCTION, f"{node.name}() has {body} lines"
            parameters = len(node.args.args) + len(node.args.kwonlyargs)
            called_by_users = package_of(module) in ("optim", "keras", "optax") or node.name == "suggest"
            assert parameters <= MAX_PARAMETERS or called_by_users, f"{node.name}() has {parameters} parameters"


@pytest.mark.parametrize("folder", sorted({path.parent for _, path in MODULES}), ids=lambda folder: folder.name)
def test_folders_are_small(folder):
    built = {".so", ".pyd", ".pyc", ".pyi"}  # and the types of what is built
    files = sorted(path.name for path in folder.iterdir() if path.is_file() and path.suffix not in built)
    assert len(files) <= MAX_FILES, files
