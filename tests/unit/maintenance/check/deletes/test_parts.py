"""The same faults however the work is divided: in threads, and in parts that are sent to each other as Spark tasks are."""

import pickle
from collections import defaultdict
from typing import Any

import pytest
from msgspec.structs import replace
from pyroaring import BitMap64

from icekeep.formats.puffin import VectorTarget, write_deletion_vectors
from icekeep.maintenance.check import by_file, deletes
from icekeep.spec.manifests.structs import FileContent
from kit.checked_deletes import POSITIONS, checked, damager, made, rows, with_files, written
from kit.limits import limited
from kit.no_spark import no_spark
from kit.written_deletes import data_files, delete_equal, delete_positions

PARTS = 3


def exchanged(session, payloads, send, parts, receive, shared, *, step):
    """What `run_exchange` does, in this process."""
    boxes: defaultdict[int, list[Any]] = defaultdict(list)
    for payload in pickle.loads(pickle.dumps(payloads)):
        for number, value in send(payload, pickle.loads(pickle.dumps(shared))):
            boxes[number % parts].append((number, pickle.loads(pickle.dumps(value))))
    results = [receive(part, reversed(boxes[part]), pickle.loads(pickle.dumps(shared))) for part in range(parts)]
    return pickle.loads(pickle.dumps(results)), []


@pytest.fixture(params=["entries", "bytes", "files"])
def in_parts(request, monkeypatch):
    """There is too much for this process, in one way or another."""
    monkeypatch.setattr(by_file, "run_exchange", exchanged)
    monkeypatch.setattr(by_file, "tasks_count", lambda *amounts, **more: PARTS)
    for module in (by_file, deletes):
        monkeypatch.setattr(module, "started", lambda source: None)
    names = {"entries": "entries_count", "bytes": "checked_delete_bytes", "files": "footers_count"}
    return limited(no_spark, **{names[request.param]: 1, "folded_entries_count": 1})


def position_deletes(table, pairs, **changes):
    file = written(table, POSITIONS, [{"file_path": path, "pos": pos} for path, pos in pairs])
    return replace(file, content=FileContent.POSITION_DELETES, sort_order_id=None, **changes)


def spoilt(version):
    """A table of delete files that are sound, and of others, one of which several manifests name."""
    table = made(version, range(5), range(5, 10), range(10, 15))
    paths = [file.file_path for file in data_files(table)]
    if version == 3:
        targets = [VectorTarget(location=path, spec_id=0) for path in paths]
        positions = [BitMap64([1]), BitMap64([2, 7]), BitMap64([3])]
        several = write_deletion_vectors(
            table.storage, f"{table.metadata.location}/v.puffin", list(zip(targets, positions, strict=True))
        )
        return with_files(table, deletes=[several[0], several[1], replace(several[2], record_count=4)])
    table = delete_positions(table, [(paths[0], 0)])
    table = delete_equal(table, rows([1, 2]), ["id"])
    beyond = position_deletes(table, [(paths[0], 2), (paths[1], 9), (paths[2], 8)])
    table = with_files(table, deletes=[beyond, position_deletes(table, [(paths[1], 3), (paths[1], 1)])])
    table = with_files(table, deletes=[replace(beyond, record_count=9)])
    return with_files(table, deletes=[position_deletes(table, [(paths[2], 1)], record_count=4)])


@pytest.mark.parametrize(("version", "numbers"), [(2, [411, 412, 415, 415]), (3, [411, 415])])
def test_parts_find_what_one_process_finds(version, numbers, in_parts):
    table = spoilt(version)
    here, tally = checked(table)
    there, other = checked(table, in_parts)
    assert [fault.number for fault in here] == numbers
    assert there == here
    assert other.gaps() == tally.gaps()


def test_a_manifest_that_cannot_be_read_is_noted(in_parts):
    table = spoilt(2)
    path = damager(table).entry(1).manifest
    damager(table).write(path, b"\0" * 10)
    here, tally = checked(table)
    there, other = checked(table, in_parts)
    assert there == here
    assert (
        {gap.what for gap in tally.gaps()} == {f"the files of manifest {path!r}"} == {gap.what for gap in other.gaps()}
    )


@pytest.mark.parametrize("limit", [0, 2])
def test_more_pairs_than_can_be_held_leave_a_gap(limit, monkeypatch):
    monkeypatch.setattr(deletes, "REACHES", limit)
    faults, tally = checked(spoilt(2))
    assert [fault.number for fault in faults] == [412, 415, 415]
    assert [gap.what for gap in tally.gaps()] == ["whether deletes name rows that data files have"]
