"""The notebook of the docs, run from its first cell to its last in a kernel of its own."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "notebooks" / "walkthrough.ipynb"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook with its outputs; the playground that it makes goes with the test."""
    import nbclient
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    directory = tmp_path_factory.mktemp("walkthrough")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(directory))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (f"{ROOT}/lib", os.environ.get("PYTHONPATH")))))
        nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(directory)}}).execute()
    return notebook


def outputs(notebook: Any, ends: str) -> list[Any]:
    """What the cells show that end with a line."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.endswith(ends)]
    assert cells
    return [output for cell in cells for output in cell.outputs]


def test_every_cell_shows_something(ran: Any) -> None:
    cells = [cell for cell in ran.cells if cell.cell_type == "code"]
    assert len(cells) > 15
    assert all(cell.outputs for cell in cells)


def test_layouts_are_pictures_before_and_after(ran: Any) -> None:
    shown = outputs(ran, "after=icekeep.file_layout(table.refresh()))")
    pictures = [one for one in shown if one.output_type == "execute_result"]
    assert len(pictures) == 2
    assert all("data:image/svg+xml;base64," in one.data["text/html"] for one in pictures)


def test_results_are_tables_and_progress_is_one_output(ran: Any) -> None:
    progress, result = outputs(ran, "icekeep.compact(table, listener=icekeep.progress())")
    assert progress.output_type == "display_data"
    assert progress.data["text/plain"].splitlines()[-1].startswith("rewriting data files: done in ")
    assert "<b>RewriteDataFilesResult</b><table>" in result.data["text/html"]


def test_a_rewrite_of_manifests_lets_a_filter_open_fewer(ran: Any) -> None:
    before, after = (
        int(re.search(r"opened_manifests_count\D+(\d+)", output.data["text/plain"])[1])
        for output in outputs(ran, "where=where)")
    )
    assert (before, after) == (60, 1)


def test_the_broken_table_is_fixed(ran: Any) -> None:
    [status] = outputs(ran, 'ref="main").status')
    assert status.data["text/plain"] == "'sound'"
