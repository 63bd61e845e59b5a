"""Each change beside each thing that others may do meanwhile: `meanwhile.txt` says what becomes of it."""

from pathlib import Path

import pytest

from icekeep.commit import changes
from kit import meanwhile
from kit.cases import for_each, some_of
from kit.meanwhile import CHANGES, MEANWHILE, met

pytestmark = pytest.mark.slow

LINES = [
    [word.strip() for word in line.split("|")]
    for line in Path(__file__).with_name("meanwhile.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
COLUMNS = LINES[0][1:]
TABLE = {words[0]: dict(zip(COLUMNS, words[1:], strict=True)) for words in LINES[1:]}
OF_FILES = [*CHANGES][: [*CHANGES].index("expire")]
"""Changes that add or remove files: all cells are tried in each run; of the others, and in shares, some are."""


def test_the_table_has_every_change_and_every_act():
    assert [[*TABLE], COLUMNS] == [[name.strip() for name in CHANGES], [*MEANWHILE]]


def test_every_module_of_changes_is_in_the_table():
    modules = {path.stem for path in Path(changes.__path__[0]).glob("*.py")} - {"__init__", "base"}
    used = {getattr(one, "__module__", "").rpartition(".")[2] for one in vars(meanwhile).values()}
    assert modules - used == set()


@for_each(
    ("change", "shared"),
    [(change, shared) for change in CHANGES for shared in (False, True)[: 1 + (change in OF_FILES)]],
)
def test_outcome_beside_other_change_matches_the_table(change, shared):
    """A change lands or is refused beside each concurrent act as the table says, and every row is right."""
    others = some_of(COLUMNS, least=len(COLUMNS) if change in OF_FILES and not shared else 5)
    cells = {other: met(change, other, shared=shared) for other in others}
    assert {other: cell.outcome for other, cell in cells.items()} == {o: TABLE[change.strip()][o] for o in others}
    assert {other: cell.wrong for other, cell in cells.items() if cell.wrong} == {}
