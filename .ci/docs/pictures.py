"""The pictures of docs/images that are drawn from real runs: `PYTHONPATH=lib python .ci/docs/pictures.py` makes them anew.

Tables of the playground are made at a fixed time, jobs run on them, and what is drawn is what the tables were before and after.
"""

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from icekeep.catalog.base import Catalog, Table
from icekeep.catalog.open import open_catalog
from icekeep.commit.manifests import ManifestReader
from icekeep.events import Event, StepStarted
from icekeep.formats.deletes.read import read_position_deletes
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.playground.job import CATALOG, NAMESPACE, new_playground
from icekeep.playground.maker import PastRuntime, TableMaker, orders
from icekeep.playground.states import STATES, PlaygroundState
from icekeep.reports.layout_picture import file_layout, layouts_svg
from icekeep.reports.svg import MarkupText, element, svg_file, text
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import DAY_MS, format_bytes

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
NOW_MS = 1_780_315_200_000
"""2026-06-01T12:00:00Z."""

_ROWS = 6
_CELL, _WIDE = 20, 760


def main() -> int:
    """Draw all of them."""
    for name, draw in PICTURES.items():
        with tempfile.TemporaryDirectory() as directory:
            picture = draw(Path(directory) / "playground")
        (IMAGES / f"{name}.svg").write_text(picture)
        sys.stdout.write(f"docs/images/{name}.svg\n")
    return 0


def layout(directory: Path) -> str:
    """How two tables lie before and after `compact`."""
    catalog = _made(directory, *(state for state in STATES if state.name in ("small_files", "delete_files")))
    drawings = {}
    for name, title in (("small_files", "small files"), ("delete_files", "rows deleted by position delete files")):
        table = catalog.load((NAMESPACE, name))
        drawings[title] = file_layout(table)
        compact(table, _no_spark)
        drawings[f"{title}: after icekeep compact"] = file_layout(table.refresh())
    return layouts_svg(drawings)


def carrying(directory: Path) -> str:
    """A compaction of three small files, while somebody deletes two rows of one of them."""
    catalog = _made(directory, PlaygroundState(name="carried", what="", make=_three_files, age_ms=DAY_MS))
    table = catalog.load((NAMESPACE, "carried"))
    old, positions = TableMaker.of(table).files(), (1, 4)
    result = compact(
        table,
        _no_spark,
        options={"rewrite-all": True},
        listener=_Beside(lambda: _delete_of_second(table, positions)),
    )
    assert result.carried_delete_files_count == 1
    after = table.refresh()
    [new] = TableMaker.of(after).files()
    carried = [int(one) for one in read_position_deletes(after.storage, _delete_file_of(after), new.file_path)]
    assert carried == [_ROWS + one for one in positions], carried
    return _carrying_drawn(len(old), positions, carried)


def expiration(directory: Path) -> str:
    """What expiration keeps of a table with tags and a branch, and what becomes garbage."""
    catalog = _made(directory, next(state for state in STATES if state.name == "branches"))
    before = catalog.load((NAMESPACE, "branches"))
    files = {one.snapshot_id: _files_of(before, one) for one in before.metadata.snapshots}
    result = expire_snapshots(before, _no_spark)
    after = before.refresh()
    read = {path for one in after.metadata.snapshots for path in files[one.snapshot_id]}
    garbage = {path: size for some in files.values() for path, size in some.items() if path not in read}
    assert result.deleted_data_files_count == len(garbage)
    return _expiration_drawn(before, after, files, garbage)


PICTURES: Mapping[str, Callable[[Path], str]] = {"layout": layout, "carrying": carrying, "expiration": expiration}


class _Beside:
    """Does something once, when the rewriting of files begins, of which the plan is made by then."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act: Callable[[], object] | None = act

    def on(self, event: Event) -> None:
        if isinstance(event, StepStarted) and self._act is not None:
            act, self._act = self._act, None
            act()


def _made(directory: Path, *states: PlaygroundState) -> Catalog:
    clock = PastRuntime("pictures", NOW_MS)
    with new_playground(directory, states, runtime=clock):
        pass
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}/warehouse",
    }
    return open_catalog(CATALOG, properties, clock)


def _three_files(maker: TableMaker) -> None:
    maker.create()
    for number in range(3):
        maker.append(orders(100 * number, _ROWS, maker.clock.now_ms()), after_ms=1000)


def _delete_of_second(table: Table, positions: tuple[int, ...]) -> None:
    maker = TableMaker.of(table.refresh())
    # By location, as the compaction reads them.
    maker.delete_positions([(maker.files()[1], positions)])


def _live_files(table: Table, snapshot: Snapshot) -> list[DataFile]:
    reader = ManifestReader(table.storage)
    entries = (entry for one in reader.manifests(snapshot) for entry in reader.entries(one, table.metadata))
    return [entry.data_file for entry in entries if entry.is_live]


def _files_of(table: Table, snapshot: Snapshot) -> Mapping[str, int]:
    """The sizes of a snapshot's files by their locations."""
    return {file.file_path: file.file_size_in_bytes for file in _live_files(table, snapshot)}


def _delete_file_of(table: Table) -> DataFile:
    assert table.current_snapshot is not None
    files = _live_files(table, table.current_snapshot)
    [found] = [file for file in files if file.content is FileContent.POSITION_DELETES]
    return found


def _carrying_drawn(files: int, positions: tuple[int, ...], carried: list[int]) -> str:
    """Three steps below each other; a cell is a row of a file."""
    parts = [
        text(16, 30, "1. A compaction begins", "title"),
        text(
            16, 48, f"It reads {files} data files of {_ROWS} rows each, and notes where in the new file each row goes."
        ),
    ]
    parts += _cells(files, {}, 62, "data file {}")
    parts += [
        text(16, 128, "2. While it rewrites, somebody deletes two rows", "title"),
        text(
            16,
            146,
            "A delete file with positions of data file 2 is committed. That writer did not wait, and was not refused.",
        ),
    ]
    parts += _cells(files, {1: positions}, 160, "data file {}")
    parts += [
        text(16, 226, "3. The compaction commits", "title"),
        text(16, 244, "One snapshot has the new file, and a delete file for the same two rows at their places in it."),
    ]
    left = 16
    for row in range(files * _ROWS):
        parts.append(_cell(left + row * _CELL, 258, row in carried, row // _ROWS))
    places = " and ".join(map(str, positions))
    new_places = " and ".join(map(str, carried))
    parts += [
        text(16, 296, "new data file, with the rows of 1, 2 and 3"),
        element("path", class_="way", d="M 620 196 V 252"),
        element("path", class_="tip", d="M 616 250 h 8 l -4 8 z"),
        text(540, 174, f"positions {places} of file 2"),
        text(540, 190, "in a delete file"),
        text(540, 272, f"positions {new_places} of the new file"),
        text(540, 288, "in a new delete file"),
        element("rect", class_="deletes", x=16, y=318, width=_CELL - 2, height=14),
        text(42, 330, "a row that readers leave out, since a delete file names its position"),
    ]
    return svg_file(parts, _WIDE, 348, "How a compaction carries the deletes of others")


def _cells(files: int, deleted: Mapping[int, tuple[int, ...]], at: int, title: str) -> list[MarkupText]:
    parts = []
    for file in range(files):
        left = 16 + file * (_ROWS * _CELL + 40)
        parts += [_cell(left + row * _CELL, at, row in deleted.get(file, ()), file) for row in range(_ROWS)]
        parts.append(text(left, at + 38, title.format(file + 1)))
    return parts


def _cell(left: int, at: int, is_deleted: bool, file: int) -> MarkupText:
    kind = "deletes" if is_deleted else ("file", "rest", "file faint")[file]
    return element("rect", class_=kind, x=left, y=at, width=_CELL - 2, height=20)


def _expiration_drawn(
    before: Table, after: Table, files: Mapping[int, Mapping[str, int]], garbage: Mapping[str, int]
) -> str:
    """Snapshots from left to right by time, references above them, and below each the file that it added."""
    kept = {snapshot.snapshot_id for snapshot in after.metadata.snapshots}
    snapshots = sorted(before.metadata.snapshots, key=lambda one: (one.timestamp_ms, one.sequence_number))
    on_main = {one.snapshot_id for one in before.metadata.ancestors(before.metadata.refs["main"].snapshot_id)}
    step = (_WIDE - 200) / len(snapshots)
    x = {one.snapshot_id: 170 + round(step * number) for number, one in enumerate(snapshots)}
    y = {one.snapshot_id: 165 if one.snapshot_id in on_main else 225 for one in snapshots}
    parts = [
        text(16, 30, "icekeep expire_snapshots", "title"),
        text(
            16,
            48,
            "A table whose rows are all replaced each week. It keeps snapshots for 5 days, which is Iceberg's default.",
        ),
        text(16, 170, "main"),
        text(16, 230, "branch experiment"),
        text(16, 300, "data files"),
    ]
    for one in snapshots:
        parent = one.parent_snapshot_id
        if parent in x:
            ends = {"x1": x[parent], "y1": y[parent], "x2": x[one.snapshot_id], "y2": y[one.snapshot_id]}
            parts.append(element("line", class_="line", **ends, stroke_width=2))
    most = max(size for some in files.values() for size in some.values())
    for one in snapshots:
        where, parent = x[one.snapshot_id], one.parent_snapshot_id
        kind = "file" if one.snapshot_id in kept else "gone"
        parts.append(element("circle", class_=kind, cx=where, cy=y[one.snapshot_id], r=9))
        older = files.get(parent, {}) if parent is not None else {}
        for path, size in files[one.snapshot_id].items():
            if path not in older:
                height = max(6, round(44 * size / most))
                kind = "gone" if path in garbage else "file"
                parts.append(element("rect", class_=kind, x=where - 11, y=310 - height, width=22, height=height))
    parts += _references(before, after, x, y)
    parts += [
        element("circle", class_="file", cx=25, cy=343, r=8),
        text(
            42,
            347,
            "kept: the newest of a branch, what a tag names, what is young enough; and all files that these read",
        ),
        element("circle", class_="gone", cx=25, cy=369, r=7),
        text(
            42,
            373,
            f"expired, with the {len(garbage)} data files that only these read: {format_bytes(sum(garbage.values()))}",
        ),
    ]
    return svg_file(parts, _WIDE, 392, "What expiration keeps: branches, tags, snapshots, and what is garbage")


def _references(before: Table, after: Table, x: Mapping[int, int], y: Mapping[int, int]) -> list[MarkupText]:
    """Tags above their snapshots, those that stand beside each other at two heights."""
    tags = [(x[ref.snapshot_id], name, ref) for name, ref in before.metadata.refs.items() if not ref.is_branch]
    parts = []
    for number, (where, name, ref) in enumerate(sorted(tags, key=lambda tag: tag[0])):
        top, lift = y[ref.snapshot_id], 44 if number % 2 else 80
        is_kept = name in after.metadata.refs
        parts.append(element("line", class_="line", x1=where, y1=top - 10, x2=where, y2=top - lift, stroke_width=2))
        parts.append(text(where + 6, top - lift + 2, f"tag {name}", "ref" if is_kept else "gone-text"))
        parts.append(text(where + 6, top - lift + 17, "kept" if is_kept else "expired: over its 30 days"))
    return parts


def _no_spark() -> None:
    raise AssertionError("so few rows need no Spark")


if __name__ == "__main__":
    sys.exit(main())
