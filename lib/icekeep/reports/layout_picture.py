"""The function `file_layout`: how the files of a table lie in its partitions, as a picture of as many as fit.

The picture is an SVG: a row a partition, a box a data file, as wide as it has bytes. It stands alone: it has its own
ground and colours, light or dark as the reader's browser wants pages.
"""

from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Unpack

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import UsageError
from icekeep.planning.scan.plan import VersionArguments, few_files, open_scan
from icekeep.rendered import Rendered
from icekeep.reports.svg import MarkupText, element, svg_file, text
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.types import format_bytes
from icekeep.spelling import counted

FILES_MAX = 20_000
_COLUMNS = ("file_path", "spec_id", "partition", "file_size_in_bytes", "record_count")


class LaidFile(msgspec.Struct, frozen=True, kw_only=True):
    """A data file; `deletes_count` is how many delete files and vectors a reader applies to it."""

    bytes: int
    record_count: int
    deletes_count: int


class LaidPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition as its path (`day=2013-01-05`; empty without partitions) and its data files, the largest first."""

    partition: str
    spec_id: int
    files: tuple[LaidFile, ...]

    @property
    def bytes(self) -> int:
        """Of its files."""
        return sum(file.bytes for file in self.files)


class FileLayout(Rendered, frozen=True, kw_only=True):
    """How the data files of one version of a table lie in partitions. A notebook shows it as a picture.

    Attributes:
        table: `catalog.namespace.name`.
        manifests_count: that a reader of all these files opens.
        applied_deletes_count: how often a reader of all these files applies a delete file or vector to a data file.
        partitions: by spec and path.
    """

    table: str
    snapshot_id: int | None
    manifests_count: int
    data_files_count: int
    data_files_bytes: int
    applied_deletes_count: int
    partitions: tuple[LaidPartition, ...]


def file_layout(
    table: Table, *, where: str | Expression = ALWAYS_TRUE, **version: Unpack[VersionArguments]
) -> FileLayout:
    """Say how the data files of a table lie in its partitions; manifests are read, and nothing else.

    Args:
        where, version: which files, as for `scan`, and so what it raises.

    Raises:
        UsageError: they are more than a picture can show (20,000).
        InvalidTableError, MissingFileError, UnsupportedError: a manifest cannot be read whole, or deletes contradict the data.
    """
    scan = open_scan(table, where=where, **version)
    found = few_files(scan, columns=_COLUMNS)
    if found is None or found.files.num_rows > FILES_MAX:
        raise UsageError(
            f"{table.name!r} has more files than a picture shows ({FILES_MAX:,}); give `where` to choose some"
        )
    codecs = {spec_id: PartitionCodec(table.metadata.partition_type(spec_id)) for spec_id in table.metadata.specs_by_id}
    by_partition: dict[tuple[int, str], list[LaidFile]] = {}
    for row in found.rows():
        values = codecs[row["spec_id"]].decode(bytes(row["partition"]))
        key = row["spec_id"], table.metadata.partition_path(row["spec_id"], values)
        file = LaidFile(
            bytes=row["file_size_in_bytes"], record_count=row["record_count"], deletes_count=len(row["deletes"])
        )
        by_partition.setdefault(key, []).append(file)
    partitions = tuple(
        LaidPartition(partition=path, spec_id=spec_id, files=tuple(sorted(files, key=lambda file: -file.bytes)))
        for (spec_id, path), files in sorted(by_partition.items())
    )
    files = [file for one in partitions for file in one.files]
    return FileLayout(
        table=table.full_name,
        snapshot_id=None if scan.version.snapshot is None else scan.version.snapshot.snapshot_id,
        manifests_count=len(scan.data.opened) + len(scan.deletes.opened),
        data_files_count=len(files),
        data_files_bytes=sum(file.bytes for file in files),
        applied_deletes_count=sum(file.deletes_count for file in files),
        partitions=partitions,
    )


PARTITIONS_SHOWN = 16
FILES_SHOWN = 160
"""So many files of a partition are boxes; the rest is one box more."""

_WIDTH, _LABEL, _MARGIN = 760, 190, 16
_ROW, _BOX, _GAP = 26, 16, 2
_LEAST_BOX = 2.0
_NAME_LENGTH = 26
_DELETES_FULL = 8
"""So many deletes applied to a file make its mark as high as the box."""


class LayoutPicture(msgspec.Struct, frozen=True):
    """A picture; `svg` is the whole file."""

    svg: str

    def _repr_html_(self) -> str:
        # As an image its style is its own, and the page's is none of it.
        return f'<img alt="files by partition" src="data:image/svg+xml;base64,{b64encode(self.svg.encode()).decode()}">'


def layout_picture(**layouts: FileLayout) -> LayoutPicture:
    """Draw layouts below each other, all to one scale, each under the name that it is given by.

    before = file_layout(table)
    compact(table)
    layout_picture(before=before, after=file_layout(table.refresh()))
    """
    return LayoutPicture(layouts_svg({name.replace("_", " "): layout for name, layout in layouts.items()}))


def one_picture(layout: FileLayout) -> LayoutPicture:
    """A layout by itself, under the name of its table."""
    return LayoutPicture(layouts_svg({layout.table: layout}))


def layouts_svg(layouts: Mapping[str, FileLayout]) -> str:
    """Layouts below each other, each under its title, as the text of a file of SVG."""
    scale = _scale([*layouts.values()])
    parts: list[MarkupText] = []
    at = _MARGIN
    for title, layout in layouts.items():
        parts += [text(_MARGIN, at + 14, title, "title"), text(_MARGIN, at + 32, _caption(layout))]
        at += 44
        for partition in layout.partitions[:PARTITIONS_SHOWN]:
            parts += _row(partition, at, scale)
            at += _ROW
        more = len(layout.partitions) - PARTITIONS_SHOWN
        if more > 0:
            parts.append(text(_MARGIN, at + 12, f"and {more:,} partitions more"))
            at += _ROW
        at += _MARGIN
    parts.append(element("rect", class_="file", x=_MARGIN, y=at, width=18, height=12))
    parts.append(text(_MARGIN + 26, at + 11, "a data file, as wide as it has bytes"))
    if any(layout.applied_deletes_count for layout in layouts.values()):
        deletes = f"delete files that a reader applies to it: full height is {_DELETES_FULL} or more"
        parts.append(element("rect", class_="deletes", x=290, y=at, width=5, height=12))
        parts.append(text(302, at + 11, deletes))
    return svg_file(parts, _WIDTH, at + 30, "Data files by partition: " + ", ".join(layouts))


def _scale(layouts: Collection[FileLayout]) -> float:
    """How wide a byte is, so that the widest row of all fits, with its gaps and boxes that are wider than their bytes."""
    room = _WIDTH - _LABEL - _MARGIN
    rows = [one for layout in layouts for one in layout.partitions[:PARTITIONS_SHOWN]]
    taken = [(_LEAST_BOX + _GAP) * len(_boxes(one)) for one in rows]
    return min(
        ((room - width) / one.bytes for one, width in zip(rows, taken, strict=True) if one.bytes > 0), default=0.0
    )


def _boxes(partition: LaidPartition) -> Sequence[LaidFile]:
    """The files that are boxes of their own, and one that stands for the others."""
    shown, rest = partition.files[:FILES_SHOWN], partition.files[FILES_SHOWN:]
    if not rest:
        return shown
    return (*shown, LaidFile(bytes=sum(file.bytes for file in rest), record_count=0, deletes_count=0))


def _row(partition: LaidPartition, at: int, scale: float) -> Iterator[MarkupText]:
    name = partition.partition or "all rows"
    yield text(_MARGIN, at + 13, name if len(name) <= _NAME_LENGTH else f"...{name[3 - _NAME_LENGTH :]}")
    left = float(_LABEL)
    for number, file in enumerate(_boxes(partition)):
        width = _LEAST_BOX + file.bytes * scale
        title = f"{format_bytes(file.bytes)}, {file.record_count:,} rows, {file.deletes_count:,} deletes"
        kind = "rest" if number == FILES_SHOWN else "file"
        yield element("rect", element("title", title), class_=kind, x=left, y=at, width=width, height=_BOX)
        if file.deletes_count:
            height = max(3.0, _BOX * min(1.0, file.deletes_count / _DELETES_FULL))
            box = {"x": left, "y": at + _BOX - height, "width": min(width, 5.0), "height": height}
            yield element("rect", class_="deletes", **box)
        left += width + _GAP


def _caption(layout: FileLayout) -> str:
    caption = (
        f"{counted(layout.data_files_count, 'data files')}, {format_bytes(layout.data_files_bytes)}, in "
        f"{counted(len(layout.partitions), 'partitions')}; {counted(layout.manifests_count, 'manifests')}"
    )
    if layout.applied_deletes_count:
        caption += f"; delete files are applied {counted(layout.applied_deletes_count, 'times')}"
    return caption
