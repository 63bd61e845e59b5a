"""Mends of what entries, rows of manifest lists and summaries say: no row that can be read changes by them."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from icekeep.commit.changes.repair_entries import live_totals
from icekeep.commit.dangling import dangling_deletes_count
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.summary import totals_of
from icekeep.errors import InvalidTableError, UnsupportedError, first_line
from icekeep.formats.deletes.read import hold_own_path
from icekeep.maintenance.checking.faults import Fault
from icekeep.maintenance.repairing.entries.measuring import MEASURED, SAID, mended_file
from icekeep.maintenance.repairing.facts import manifests_of, schema_of
from icekeep.maintenance.repairing.heads import Head
from icekeep.maintenance.repairing.named_entries import Place
from icekeep.maintenance.repairing.reasons import NOT_FOUND, CannotMendError
from icekeep.maintenance.repairing.refusals import refuse_doubled, refuse_merged
from icekeep.spec.manifests.read import completed
from icekeep.spec.manifests.structs import COUNTS, DataFile, ManifestEntry, ManifestFile
from icekeep.spelling import counted_doing

ENTRIES = SAID | MEASURED
ROWS = frozenset((203, 204, 205, 206, 207))
TOTALS = frozenset((215, 233))
_SHOWN_BYTES = 32
_SIZE, _SIZE_WRONG = "total-files-size", 233


def mend_file(head: Head, fault: Fault, numbers: frozenset[int]) -> list[tuple[Place, str]]:
    """Describe the entries of a file anew; `numbers` are all kinds of faults of entries that are to be mended.

    Returns:
        Entries that are written anew, each with what is written.

    Raises:
        CannotMendError: they stay.
    """
    facts = fault.facts
    found, same = [], False
    for place in _places(head, fault):
        file = place.entry.data_file
        if facts.get("content_offset") is not None and file.content_offset != facts["content_offset"]:
            continue
        refuse_doubled(head, place.row)
        refuse_merged(head, place)
        known = head.work.entries.get(place.key)
        if known is not None and known.file is None:
            raise CannotMendError("the file is taken out")
        new = _mended(head, fault, place, numbers)
        if (text := _difference(file, new)) == "":
            same = True
            continue
        head.work.entries[place.key] = place.mended(new)
        found.append((place, text))
    if not found and same:
        raise CannotMendError(NOT_FOUND)
    return found


def _places(head: Head, fault: Fault) -> list[Place]:
    manifests = manifests_of(fault)
    path = str(fault.facts["file_path"])
    # What one manifest says by itself is of that manifest alone.
    if fault.number in SAID:
        rows = [row for row in head.rows if row.manifest_path in manifests]
        return [p for row in rows[:1] for p in head.places(path, {row.manifest_path}) if p.row is row]
    return head.places(path, manifests)


def _mended(head: Head, fault: Fault, place: Place, numbers: frozenset[int]) -> DataFile:
    """By this fault and those that were mended in the entry before."""
    known = head.work.entries.get(place.key)
    so_far = place.entry.data_file if known is None or known.file is None else known.file
    wanted = {fault.number}
    if fault.number in MEASURED and 302 in numbers:
        # A size is only taken over together with all else that differs.
        wanted |= MEASURED & numbers
    entry = msgspec.structs.replace(place.entry, data_file=so_far)
    return mended_file(entry, wanted, head.table, schema_of(head.table, fault))


def _difference(old: DataFile, new: DataFile) -> str:
    """What is written, in a sentence; empty where nothing is."""
    said = []
    for name in DataFile.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        if isinstance(after, dict):
            was = before or {}
            ids = [i for i in sorted({*was, *after}) if was.get(i) != after.get(i)]
            said += [f"{name} of column {i}: {_shown(after.get(i))} in place of {_shown(was.get(i))}" for i in ids]
        else:
            said.append(f"{name} {_shown(after)} in place of {_shown(before)}")
    return "; ".join(said)


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return value[:_SHOWN_BYTES].hex() + ("..." if len(value) > _SHOWN_BYTES else "")
    return "none" if value is None else str([*value] if isinstance(value, tuple) else value)


def mend_row(head: Head, fault: Fault) -> str:
    """Write a manifest anew, whose row then says what it holds; returns what that is.

    Raises:
        CannotMendError: nothing proves that the manifest is whole, or the row is right.
    """
    path = str(fault.facts["manifest"])
    row = head.row(path)
    if row is None:
        raise CannotMendError("")
    refuse_doubled(head, row)
    head.work.rows.add(path)
    try:
        entries = head.entries(row)
        wrong = _wrong_row(head, row, entries)
    except (InvalidTableError, UnsupportedError) as error:
        head.work.rows.discard(path)
        raise CannotMendError(first_line(error)) from error
    if fault.number not in wrong:
        # Another kind of fault may have asked for the same manifest.
        if not wrong:
            head.work.rows.discard(path)
        raise CannotMendError(NOT_FOUND)
    live = sum(entry.is_live for entry in entries)
    return f"the manifest is written anew with its {live} live entries; {wrong[fault.number]}"


def _wrong_row(head: Head, row: ManifestFile, entries: Iterable[ManifestEntry]) -> dict[int, str]:
    """By kind of fault what the row says, and what is so."""
    metadata, storage = head.table.metadata, head.table.storage
    partition = metadata.partition_type(row.partition_spec_id)
    data = storage.read(row.manifest_path)
    names = [name for pair in COUNTS.values() for name in pair]
    blank = msgspec.structs.replace(row, manifest_length=len(data), partitions=None, **dict.fromkeys(names))
    found = completed(blank, data, partition)
    wrong = {}
    for number, which in ((204, 0), (205, 1)):
        for pair in COUNTS.values():
            said, is_ = getattr(row, pair[which]), getattr(found, pair[which])
            if said not in (None, is_):
                wrong[number] = f"{pair[which]} {is_} in place of {said}"
    if row.manifest_length != len(data):
        wrong[203] = f"{len(data)} bytes in place of {row.manifest_length}"
    if None not in (row.partitions, found.partitions) and row.partitions != found.partitions:
        wrong[206] = "the summaries of its partitions are worked out anew"
    least = min((e.sequence_number or 0 for e in entries if e.is_live), default=None)
    if least is not None and (row.min_sequence_number or 0) > least:
        wrong[207] = f"min_sequence_number {least} in place of {row.min_sequence_number}"
    return wrong


def count_anew(head: Head, reader: ManifestReader, number: int) -> str:
    """Have the totals counted anew where those of the head are wrong; returns what they become.

    Raises:
        CannotMendError: they are right, or not every manifest can be read, or files are doubled.
    """
    if head.standing:
        raise CannotMendError("files are doubled, and would be counted twice: mend faults 212 and 220 first")
    summary = head.snapshot.summary or {}
    totals = _totals(head, reader)
    names = [name for name in totals if (name == _SIZE) == (number == _SIZE_WRONG)]
    said = [f"{n} {totals[n]} in place of {summary[n]}" for n in names if n in summary and summary[n] != str(totals[n])]
    if not said:
        raise CannotMendError(NOT_FOUND)
    head.work.recounts_totals = True
    return ", ".join(said)


def can_count_anew(head: Head, reader: ManifestReader) -> bool:
    """Whether totals can be counted from the entries once what is planned is written."""
    try:
        _totals(head, reader)
    except CannotMendError:
        return False
    return not head.standing


def _totals(head: Head, reader: ManifestReader) -> Mapping[str, int]:
    """The totals of what is live once what is planned is written; raises `CannotMendError` where not all can be read."""
    # None is listed twice but for those that are going to be listed once.
    rows = {row.manifest_path: row for row in head.rows}
    sound = [row for path, row in rows.items() if path not in head.work.rows]
    try:
        found = reader.gathered(sound, live_totals(head.table.metadata))
        anew = [
            totals_of(p.entry.data_file for p in head.live(row)) for path, row in rows.items() if path in head.work.rows
        ]
    except (InvalidTableError, UnsupportedError) as error:
        raise CannotMendError(f"not every manifest can be read: {first_line(error)}") from error
    totals = totals_of(())
    for one in (*found, *anew):
        totals.update(one)
    if (problem := head.why_cut_short(totals)) is not None:
        raise CannotMendError(problem)
    for entry in head.work.entries.values():
        totals.subtract(totals_of([entry.planned.data_file]))
        totals.update(totals_of(() if entry.file is None else [entry.file]))
    totals.update(totals_of(head.work.copied))
    return totals


def drop_dangling(head: Head, reader: ManifestReader) -> str:
    """Have delete files taken out that reach no live data file; returns how many there are.

    Raises:
        CannotMendError: there are none, or not every manifest can be read.
    """
    if head.standing:
        raise CannotMendError("files are doubled: mend faults 212 and 220 first")
    if head.misleading:
        wrong = ", ".join(map(str, sorted(head.misleading)))
        raise CannotMendError(f"it is not sure what deletes reach while other faults are there: mend {wrong} first")
    try:
        count = dangling_deletes_count(head.table.metadata, head.branch, reader, hold_own_path)
    except (InvalidTableError, UnsupportedError) as error:
        raise CannotMendError(f"not every manifest can be read: {first_line(error)}") from error
    if not count:
        raise CannotMendError(NOT_FOUND)
    head.work.drops_dangling = True
    return f"{counted_doing(count, 'delete files', 'reach')} no data file and {'is' if count == 1 else 'are'} taken out"
