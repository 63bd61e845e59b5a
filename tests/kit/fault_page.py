"""The page docs/faults.md, written from the classes of faults: `python -m kit.fault_page` in `tests/` rewrites it."""

from pathlib import Path

from icekeep.maintenance.check.faults import CLASSES, FaultClass
from kit.prose import wrapped

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"

_HEAD = """# What can be wrong with a table

`icekeep check --table NAMESPACE.NAME` holds a table against the Iceberg specification, and names what it finds by these
numbers. A number never changes its meaning. Faults make the job end with exit status 3 (`faulty`). A notice is
reported in addition to them: no reader gets a wrong row because of it. What could not be looked at is reported as
`not_checked`, and then the table is not called sound (`partial`, exit status 3 too).

The last column says what an operator can do about it.
"""

_COLUMNS = "| | what must hold | while it does not | what to do |\n|---|---|---|---|\n"

_LEVELS = {
    1: "Metadata files",
    2: "Manifest lists and manifests",
    3: "Files",
    4: "What files hold (with `--deep`)",
}


def fault_page() -> str:
    """The page's text."""
    parts = [_HEAD]
    for level, title in _LEVELS.items():
        rows = [_row(one) for number, one in sorted(CLASSES.items()) if number // 100 == level]
        parts.append(f"## {title}\n\n{_COLUMNS}{''.join(rows)}")
    return wrapped("\n".join(parts))


def _row(one: FaultClass) -> str:
    notice = " (notice)" if one.is_notice else ""
    return f"| {one.number} `{one.name}`{notice} | {one.rule} | {one.readers} | {one.mend} |\n"


if __name__ == "__main__":
    PAGE.write_text(fault_page())
