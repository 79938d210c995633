"""The tutorial runs, and its stored outputs are those of a run: every picture and table is there, and no error."""

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorial.ipynb"
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("sklearn")


def kinds(notebook):
    """For each code cell the types of its outputs: what a reader sees, without the numbers."""
    shown = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            shown.append((cell["id"], output.output_type, *sorted(output.get("data", {}))))
    return shown


def test_the_tutorial_runs_and_its_stored_outputs_are_complete(tmp_path):
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOK, 4)
    stored = kinds(notebook)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert kinds(notebook) == stored
    assert sum("image/png" in kind for kind in stored) == 6
    assert any("text/html" in kind for kind in stored)


def test_the_stored_outputs_name_no_folder_of_the_author():
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert "Traceback" not in text
    assert "/home/" not in text
    assert "site-packages" not in text
