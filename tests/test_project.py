"""What holds for the project as a whole: light imports, types, documentation."""

import importlib
import importlib.metadata
import inspect
import json
import math
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import dynabound
from dynabound._extras import pip_command
from dynabound.tuning import Suggestion, Trial

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCS = "\n".join(path.read_text() for path in PAGES)
CODE = set(re.findall(r"\w+", " ".join(re.findall(r"```.*?```|`[^`\n]+`", DOCS, re.DOTALL))))
"""The names that occur in code, inline or in a block."""
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(dynabound.__path__, "dynabound.")
    if not any(part.startswith("_") for part in module.name.split("."))
    # These need frameworks that have test environments of their own.
    and not module.name.startswith(("dynabound.integrations.", "dynabound.optax", "dynabound.keras"))
)


def added_by(modules):
    """The modules that an import adds to those of torch."""
    code = f"import sys, json, torch; before = set(sys.modules); import {modules}; "
    code += "print(json.dumps(sorted(set(sys.modules) - before)))"
    return json.loads(subprocess.check_output([sys.executable, "-c", code]))


def test_the_core_imports_only_torch():
    """Everything that the optimizers add to `import torch` is dynabound's own: that is what keeps them fast."""
    added = added_by("dynabound.optim, dynabound.bounds")
    assert {name.partition(".")[0] for name in added} - sys.stdlib_module_names == {"dynabound"}


def test_the_lens_and_the_lab_do_not_import_the_compiler():
    """torch._dynamo takes seconds; ``torch.compiler.disable`` imports it."""
    assert "torch._dynamo" not in added_by("dynabound.lens, dynabound.lab, dynabound.cli.runs, dynabound.cli.studies")


@pytest.mark.parametrize("name", MODULES)
def test_every_exported_name_is_documented(name):
    module = importlib.import_module(name)
    assert module.__doc__
    for exported in getattr(module, "__all__", ()):
        value = getattr(module, exported)
        if inspect.isroutine(value) or inspect.isclass(value):
            assert value.__doc__, f"{name}.{exported} has no docstring"
        if name in ("dynabound", "dynabound.optim", "dynabound.bounds"):
            assert exported in CODE, f"{name}.{exported} is not in the documentation"


def anchors(page):
    """The anchors of a page's headings, as the site makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_have_targets(page):
    for target, anchor in re.findall(r"\]\(((?!https?:)[^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        path = page.parent / target if target else page
        assert path.exists(), target
        if anchor and path.suffix == ".md" and path.name != "api.md":  # its anchors are names of objects
            assert anchor in anchors(path), f"{target}#{anchor}"


def test_the_version_is_in_one_place():
    assert dynabound.__version__ == importlib.metadata.version("dynabound")


@pytest.mark.parametrize("python", ["3.10", "3.11"])
def test_every_direct_dependency_is_pinned_for_every_python(python):
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = {
        canonicalize_name(Requirement(text).name)
        for extra in ("torch", "lens", "theory", "lab", "ray", "tensorboard", "dev")
        for text in extras[extra]
    }
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    environment = {"python_version": python}
    pinned = {canonicalize_name(pin.name) for pin in pins if pin.marker is None or pin.marker.evaluate(environment)}
    assert needed - pinned == {"dynabound"}


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ('{"url": "file:///clone", "dir_info": {"editable": true}}', "pip install '.[lens]'"),
        ('{"url": "file:///downloads/dynabound.whl", "archive_info": {}}', "pip install 'dynabound[lens]'"),
        (None, "pip install 'dynabound[lens]'"),
    ],
    ids=["clone", "wheel", "index"],
)
def test_the_pip_command_fits_the_installation(origin, command, monkeypatch):
    monkeypatch.setattr(importlib.metadata.PathDistribution, "read_text", lambda self, name: origin)
    assert pip_command("lens") == command


def test_the_tutorial_shows_a_suggestion_with_the_present_text():
    cells = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text(encoding="utf-8"))["cells"]
    shown = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    plain, html = next(
        ("".join(data["text/plain"]), "".join(data["text/html"]))
        for data in shown
        if "".join(data.get("text/plain", "")).startswith("Suggestion(")
    )
    found = eval(plain, {"Suggestion": Suggestion, "Trial": Trial, "inf": math.inf, "nan": math.nan})
    assert html == found._repr_html_()
