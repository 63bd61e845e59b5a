"""Documents that many edit are wrapped at one width, so that a change shows as what it is."""

from pathlib import Path

from kit.cases import for_each
from kit.prose import WIDTH, wrapped

ROOT = Path(__file__).parents[2]


PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "decisions"),
    *(ROOT / name for name in ("tests/README.md", "tests/conformance/README.md")),
]


@for_each("name", [str(path.relative_to(ROOT)) for path in PAGES])
def test_prose_is_wrapped_at_the_width_of_the_code(name):
    """If not: `python -m kit.prose ../FILE` in `tests/`."""
    text = (ROOT / name).read_text()
    assert wrapped(text).splitlines() == text.splitlines()


def test_wrapping_breaks_lines_between_words_and_leaves_all_else():
    long = "word " * 40 + "`a code span` [a link](http://x/a b) " + "more " * 20
    text = f"# Title {long}\n\n{long}\n* {long}\n  - {long}\n\n| a | {long} |\n\n```\n{long}\n```\n\n    {long}\n"
    done = wrapped(text)
    assert done.split() == text.split()
    assert wrapped(done) == done
    prose = [
        line for line in done.splitlines() if not line.startswith(("#", "|", "    word")) and long.strip() not in line
    ]
    assert len(prose) > 9
    assert max(map(len, prose)) <= WIDTH
    assert done.count("`a code span`") == 7
    assert f"\n    {long}\n" in done


def test_no_line_begins_with_what_would_be_a_list():
    text = "a" * 125 + " + b " + "c " * 60 + "- d 1. e"
    assert not any(line.startswith(("+", "-", "1.")) for line in wrapped(text).splitlines())
