"""Entries that are sent to parts by their files, as Spark tasks send them: the same is found as here."""

import pickle
from typing import Any

import pytest

from icekeep.maintenance.check import by_file, content
from icekeep.maintenance.check.content import check_data_files
from icekeep.maintenance.check.faults import Tally
from icekeep.maintenance.manifests.job import rewrite_manifests
from kit.checked_entries import all_faults, listed, subject_of
from kit.choices import Choices
from kit.damager import Damager
from kit.lake import EVENTS, Lake
from kit.limits import limited
from kit.no_spark import no_spark


def exchanged(
    session: Any, payloads: Any, send: Any, parts: int, receive: Any, shared: Any, *, step: str
) -> tuple[list[Tally], list[Any]]:
    shared = pickle.loads(pickle.dumps(shared))
    sent = [pickle.loads(pickle.dumps(one)) for payload in payloads for one in send(payload, shared)]
    return [receive(n, [one for one in sent if one[0] == n], shared) for n in range(parts)], []


def test_tasks_find_what_threads_find_and_each_file_is_told_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.filled(commits=3, files=2)
    rewrite_manifests(lake.load(), no_spark)
    damaged = Damager(lake.catalog, EVENTS, Choices(1))
    path = damaged.entry().file["file_path"]
    damaged.write(path, bytes(50))
    monkeypatch.setattr(by_file, "run_exchange", exchanged)
    monkeypatch.setattr(content, "started", lambda spark: None)
    monkeypatch.setattr(by_file, "tasks_count", lambda *args: 3)
    told = []
    for spark in (no_spark, limited(no_spark, footers_count=0)):
        subject = subject_of(lake.load(), spark)
        check_data_files(subject, listed(lake.load(), subject.snapshots))
        told.append(all_faults(subject.tally))
    assert told[0] == told[1]
    [fault] = told[0]
    assert (fault.number, fault.where) == (401, path)
    assert len(fault.facts["manifests"]) == 2
