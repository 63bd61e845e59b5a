"""Which software a table's snapshots name, and whether its release is known to go on with a newer format version."""

import re
from pathlib import Path

import pytest

from icekeep.maintenance.upgrade.engines import SUPPORT, engines_seen
from icekeep.spec.snapshots import Snapshot
from kit.shell import ROOT

PAGE = ROOT / "docs/jobs/upgrade.md"


def seen(version, *summaries):
    """The software that snapshots with some summaries name, one a second."""
    snapshots = [
        Snapshot(snapshot_id=number, timestamp_ms=1000 * number, summary=summary)
        for number, summary in enumerate(summaries, 1)
    ]
    return engines_seen(snapshots, version)


def spark(library, version="3.5.1"):
    return {
        "engine-name": "spark",
        "engine-version": version,
        "iceberg-version": f"Apache Iceberg {library} (commit 1a2b)",
    }


@pytest.mark.parametrize(
    ("summary", "name", "problem"),
    [
        (spark("1.10.0"), "Spark 3.5.1 with Iceberg 1.10.0", ""),
        (spark("1.10"), "Spark 3.5.1 with Iceberg 1.10", ""),
        (spark("1.11.0", "4.0.1"), "Spark 4.0.1 with Iceberg 1.11.0", ""),
        (spark("1.9.2"), "Spark 3.5.1 with Iceberg 1.9.2", "Iceberg Java writes it since 1.10.0"),
        (
            spark("1.7.1-amzn-0"),
            "Spark 3.5.1 with Iceberg 1.7.1-amzn-0",
            "Iceberg Java reads it since 1.8.0 and writes it since 1.10.0",
        ),
        (
            {"flink.job-id": "j", "iceberg-version": "Apache Iceberg 1.8.1"},
            "Flink with Iceberg 1.8.1",
            "Iceberg Java writes it since 1.10.0",
        ),
        (
            {"iceberg-version": "Apache Iceberg 1.4.0"},
            "a program with Iceberg 1.4.0",
            "Iceberg Java reads it since 1.8.0 and writes it since 1.10.0",
        ),
        # Its library says nothing of what Trino itself reads.
        (
            {"engine-name": "trino", "engine-version": "476", "iceberg-version": "Apache Iceberg 1.12.0"},
            "Trino 476 with Iceberg 1.12.0",
            "Trino reads it since 480 and writes it since 480",
        ),
        ({"engine-name": "trino", "engine-version": "481"}, "Trino 481", ""),
        (
            {"engine-name": "PyIceberg", "engine-version": "0.12.0"},
            "PyIceberg 0.12.0",
            "no release of PyIceberg writes format version 3",
        ),
        ({"engine-name": "icekeep", "engine-version": "0.1.0"}, "icekeep 0.1.0", ""),
    ],
)
def test_releases_that_are_known(summary, name, problem):
    [one] = seen(3, summary)
    assert (one.name, one.problem, one.is_known) == (name, problem, True)


@pytest.mark.parametrize(
    "summary",
    [
        None,
        {"operation": "append"},
        {"trino_query_id": "2026_1"},
        {"presto_query_id": "2026_1"},
        {"spark.app.id": "app-1"},
        {"engine-name": "Dremio", "engine-version": "26.0", "iceberg-version": "Apache Iceberg 1.2.0"},
        spark("unknown"),
    ],
)
def test_what_nobody_knows_is_said_to_be_unknown(summary):
    [one] = seen(3, summary)
    assert (one.problem, one.is_known) == ("", False)


def test_each_release_is_named_once_the_last_writer_first():
    found = seen(3, spark("1.4.3"), spark("1.10.0"), spark("1.4.3"), spark("1.10.0"))
    assert [(one.name[-6:], one.snapshots_count, one.last_ms) for one in found] == [
        ("1.10.0", 2, 4000),
        (" 1.4.3", 2, 3000),
    ]


def test_version_2_is_older_than_the_key_of_the_library():
    assert [one.problem for one in seen(2, spark("1.4.3"))] == [""]


def test_the_page_has_every_release_of_the_table():
    rows = re.findall(r"^\| ([\w ]+) \| ([^|]+) \| ([^|]+) \|", Path(PAGE).read_text(), re.MULTILINE)
    shown = {name: (reads.strip(), writes.strip()) for name, reads, writes in rows if name in SUPPORT}

    def release(text):
        return {"": "none", "0": "every release"}.get(text, text)

    assert shown == {one.name: (release(one.reads[3]), release(one.writes[3])) for one in SUPPORT.values()}
