"""Streams of Spark that read a table by Iceberg Java 1.12.0: stopped, while snapshots expire, and started again.

Spark itself keeps the checkpoint, and nobody tells icekeep more of it than where it is.
"""

from pathlib import Path

import pytest

from icekeep.maintenance.expire.job import expire_snapshots, plan_expire_snapshots
from icekeep.tables.verbs import append
from kit.cases import SQL_BY_DAY
from kit.java import IcebergJava, JavaError
from kit.lake import Lake, events

pytestmark = pytest.mark.parametrize("lake", SQL_BY_DAY, indirect=True)

NAME = "local.db.events"
ALL = {"older_than": 2**62, "retain_last": 1, "trash": 0}


class Stream:
    """A query over the table with a checkpoint of its own."""

    def __init__(self, java: IcebergJava, directory: Path) -> None:
        self._java, self.checkpoint, self._output = java, f"{directory}/checkpoint", f"{directory}/read"

    def read(self, files: int = 1000, *, now: bool = False) -> list[int]:
        """Go on from the checkpoint until nothing is left; the ids of all rows that the stream has ever read."""
        return self._java.stream(NAME, self.checkpoint, self._output, files=files, now=now)

    @property
    def options(self) -> dict[str, str]:
        return {"readers.spark-checkpoints": self.checkpoint}


@pytest.fixture
def stream(lake: Lake, java: IcebergJava, tmp_path: Path) -> Stream:
    lake.filled(commits=3)
    return Stream(java, tmp_path)


def ids(lake: Lake) -> list[int]:
    """Of the table as it is, by PyIceberg."""
    return sorted(lake.foreign_catalog().load_table(("db", "events")).scan().to_arrow()["id"].to_pylist())


def test_stopped_stream_loses_no_row_when_snapshots_expire(lake: Lake, stream: Stream) -> None:
    assert stream.read() == ids(lake)
    reached = lake.load().metadata.current_snapshot_id
    for number in (50, 51, 52):
        append(lake.load(), events(number))
    plan = plan_expire_snapshots(lake.load(), **ALL, options=stream.options)
    [seen] = plan.readers
    assert (seen.name, seen.source, seen.snapshot_id, seen.status) == (
        stream.checkpoint,
        "checkpoint",
        reached,
        "waited_for",
    )
    assert (plan.expired_snapshots_count, plan.kept_for_readers[0].snapshot_id) == (2, reached)
    done = expire_snapshots(lake.load(), **ALL, options=stream.options)
    assert (done.expired_snapshots_count, len(done.kept_for_readers)) == (2, 3)
    assert stream.read() == ids(lake)
    # Once it has read everything, they go.
    assert expire_snapshots(lake.load(), **ALL, options=stream.options).retained_snapshots_count == 1
    append(lake.load(), events(60))
    assert stream.read() == ids(lake)


def test_stream_fails_where_nothing_is_kept_for_it(lake: Lake, stream: Stream) -> None:
    stream.read()
    for number in (50, 51, 52):
        append(lake.load(), events(number))
    expire_snapshots(lake.load(), **ALL)
    with pytest.raises(JavaError, match="the snapshot was expired or removed"):
        stream.read()


def test_stream_in_the_middle_of_a_snapshot_is_kept_its_files(lake: Lake, stream: Stream) -> None:
    """Batches of one file: the last one that is done may end within a snapshot, whose files are still to be read."""
    lake_ids = stream.read(files=1)
    assert lake_ids == ids(lake)
    append(lake.load(), [events(70), events(71), events(72)])
    checkpoint = Path(stream.checkpoint)
    stream.read(files=1)
    # As if it had been killed two batches ago.
    for batch in sorted(int(one.name) for one in (checkpoint / "commits").iterdir() if one.name.isdigit())[-2:]:
        for name in (f"commits/{batch}", f"commits/.{batch}.crc", f"offsets/{batch}", f"offsets/.{batch}.crc"):
            (checkpoint / name).unlink(missing_ok=True)
    append(lake.load(), events(80))
    expire_snapshots(lake.load(), **ALL, options=stream.options)
    assert set(stream.read(files=1)) == set(ids(lake))


def test_stream_that_has_done_no_batch_keeps_where_it_began(lake: Lake, stream: Stream) -> None:
    stream.read()
    checkpoint = Path(stream.checkpoint)
    for log in ("commits", "offsets"):
        for one in (checkpoint / log).iterdir():
            if log == "commits" or one.name.strip(".").partition(".")[0] != "0":
                one.unlink()
    append(lake.load(), events(50))
    done = expire_snapshots(lake.load(), **ALL, options=stream.options)
    assert done.expired_snapshots_count == 0
    assert set(stream.read()) == set(ids(lake))


def test_available_now_also_wants_the_snapshot_it_began_with(lake: Lake, stream: Stream) -> None:
    """Iceberg 1.12 looks for the end of such a run from where the stream once began, however far it has come since.

    The first offset is all that stands in the way: without its file the stream goes on from its checkpoint.
    """
    assert stream.read(now=True) == ids(lake)
    for number in (50, 51, 52):
        append(lake.load(), events(number))
    expire_snapshots(lake.load(), **ALL, options=stream.options)
    with pytest.raises(JavaError, match="the snapshot was expired or removed"):
        stream.read(now=True)
    for name in ("0", ".0.crc"):
        (Path(stream.checkpoint) / "sources/0/offsets" / name).unlink(missing_ok=True)
    assert stream.read(now=True) == ids(lake)
