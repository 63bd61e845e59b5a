"""What mkdocs is told beside its configuration: pages that lie outside of docs/, and what a page must not do.

A page's links are those of the checkout, so that they work on GitHub as well as here. A link to something that is no page, such
as a source file, becomes its text; whether it is there is looked at all the same.
"""

import logging
import posixpath
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

_HERE = Path(__file__).parent
sys.path.insert(0, str(_HERE))

from list_items import set_in  # noqa: E402

_ROOT = _HERE.parents[1]
_PAGES = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "tests/README.md": "tests.md",
    "tests/conformance/README.md": "conformance-suite.md",
}
"""Files of the checkout that are pages of the site."""

AUTHORS_FOLDERS = ("design/decisions/", "performance/")
"""Pages for those who change icekeep, not for those who use it: the search and the navigation leave them out."""

_SOURCES = {page: source for source, page in _PAGES.items()}
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
_ITEM = re.compile(r"(?:[*-]|\d+\.) +\S")
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//|<link\b[^>]*\brel=["']?stylesheet[^>]*//"""
)
_LOG = logging.getLogger("mkdocs.plugins.icekeep")


def on_files(files: Any, config: Any) -> Any:
    for source, page in _PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(_ROOT / source)))
    for name in ("site.css", "favicon.svg"):
        files.append(File.generated(config, f"assets/{name}", abs_src_path=str(_HERE / name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    uri = page.file.src_uri
    if uri.startswith(AUTHORS_FOLDERS):
        page.meta["search"] = {"exclude": True}
    _check_lists(markdown, uri)
    return _outside_code(set_in(markdown), lambda text: _LINK.sub(lambda found: _linked(found, uri), text))


def on_post_page(output: str, page: Any, config: Any) -> str:
    if found := _LOADED.search(output):
        _LOG.warning("%s loads something from elsewhere: %s", page.file.src_uri, found[0])
    return output


def _linked(found: re.Match[str], uri: str) -> str:
    picture, text, address = found.groups()
    place, mark, anchor = address.partition("#")
    if not place or re.match(r"[a-z]+:", place):
        return found[0]
    here = _SOURCES.get(uri, f"docs/{uri}")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(here), place))
    if (_ROOT / target).is_dir():
        index = next((name for name in ("index.md", "README.md") if (_ROOT / target / name).is_file()), None)
        target = f"{target}/{index}" if index else target
    page = _PAGES.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else None)
    if page is not None:
        return f"{picture}[{text}]({posixpath.relpath(page, posixpath.dirname(uri) or '.')}{mark}{anchor})"
    if not (_ROOT / target).exists():
        _LOG.warning("%s has a link to %s, which is not there", uri, address)
    return text


def _outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """A page with what is no block of code changed."""
    parts = _FENCED.split(markdown)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def _check_lists(markdown: str, uri: str) -> None:
    """Warn of a list without an empty line before it, which GitHub shows as a list, and the site as part of a paragraph."""
    before, is_code = "", False
    for line in markdown.splitlines():
        if line.lstrip().startswith("```"):
            is_code = not is_code
        is_item = _ITEM.match(line) and not is_code
        if is_item and before.strip() and not _ITEM.match(before) and not before.startswith((" ", "#", "<!--")):
            _LOG.warning("%s: a list has an empty line before it: %s", uri, line[:60])
        before = line
