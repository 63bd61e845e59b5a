"""The hook of the site: pages for authors stay out of the search and the navigation."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kit.cases import for_each
from kit.shell import ROOT

DOCS = ROOT / ".ci" / "docs"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module without mkdocs, which the environment of the tests does not have."""
    files = ModuleType("mkdocs.structure.files")
    files.File = object  # type: ignore[attr-defined]
    for name in ("mkdocs", "mkdocs.structure"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "mkdocs.structure.files", files)
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("site_pages", DOCS / "site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@for_each(
    ("uri", "is_found"),
    [
        ("design/decisions/006-unknown-is-an-outcome.md", False),
        ("design/decisions/README.md", False),
        ("performance/rivals.md", False),
        ("performance.md", True),
        ("design/README.md", True),
        ("commands/ref.md", True),
    ],
)
def test_the_search_has_no_page_for_authors(hook, uri, is_found):
    page = SimpleNamespace(file=SimpleNamespace(src_uri=uri), meta={})
    hook.on_page_markdown("text", page=page, config=None, files=None)
    assert (page.meta == {}) == is_found


def test_the_navigation_leaves_the_same_folders_out(hook):
    text = (DOCS / "mkdocs.yml").read_text()
    [left_out] = [part for part in text.split("\n\n") if "not_in_nav" in part]
    assert {line.strip().strip("/") + "/" for line in left_out.splitlines() if line.startswith("  ")} == {
        *hook.AUTHORS_FOLDERS
    }
    assert not any(folder in text.partition("\nnav:\n")[2] for folder in hook.AUTHORS_FOLDERS)


def test_the_pages_that_users_find_link_to_all_of_them(hook):
    for folder, start in (("performance", "performance.md"), ("design/decisions", "design/decisions/README.md")):
        text = (ROOT / "docs" / start).read_text()
        pages = [path for path in (ROOT / "docs" / folder).glob("*.md") if path.name != "README.md"]
        assert len(pages) > 5
        assert [path.name for path in pages if path.name not in text] == []
    built = (ROOT / "docs" / "design" / "README.md").read_text()
    assert "](decisions/README.md)" in built
    assert "](../performance.md)" in built
