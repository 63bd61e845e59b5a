"""Which release of which software reads and writes which format version, and which of them a table's snapshots name.

What is not known is said to be unknown: a release that nobody has looked at is neither good nor bad. Each line has its source;
`docs/jobs/upgrade.md` shows the table to people.
"""

import re
from collections.abc import Iterable, Mapping

import msgspec

from icekeep.commit.summary import Producer, producer_of
from icekeep.spec.snapshots import Snapshot

NEVER = ""
"""In the place of a release: none does, as far as is known."""


class Support(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one piece of software.

    Attributes:
        name: as summaries have it, or of the library that an engine works by.
        reads, writes: the first release that reads, or writes, tables of a format version with all that they may hold; a version
            that is not there is unknown.
        source: where that stands.
    """

    name: str
    reads: Mapping[int, str]
    writes: Mapping[int, str]
    source: str


ICEBERG_JAVA = "Iceberg Java"

SUPPORT: Mapping[str, Support] = {
    one.name: one
    for one in (
        Support(
            name=ICEBERG_JAVA,
            reads={2: "1.0.0", 3: "1.8.0"},
            writes={2: "1.0.0", 3: "1.10.0"},
            source="Iceberg's release notes: deletion vectors are read since 1.8.0, row lineage is in all tables of version 3 "
            "since 1.9.0, and Spark keeps it in updates and compactions since 1.10.0",
        ),
        Support(
            name="Trino",
            reads={3: "480"},
            writes={3: "480"},
            source="Trino's release notes: tables of version 3, their deletion vectors and defaults since 480",
        ),
        Support(
            name="PyIceberg",
            reads={2: "0.6.0", 3: "0.12.0"},
            writes={2: "0.6.0", 3: NEVER},
            source="apache/iceberg-python #1551 for writing, open as of 0.12.0, which reads vectors in icekeep's own tests",
        ),
        Support(
            name="icekeep",
            reads={2: "0", 3: "0"},
            writes={2: "0", 3: "0"},
            source="icekeep's own tests against Iceberg Java",
        ),
    )
}
"""By name."""

_BY_LIBRARY = frozenset({"Spark", "Flink", "Hive", "Kafka Connect", ""})
"""Engines that read and write by Iceberg Java, whose version decides; without a name it is a program of Java's API."""

_RELEASE = re.compile(r"\d+(?:\.\d+)*")


class EngineSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Software that made snapshots of a table.

    Attributes:
        name: with versions, as far as summaries have them.
        snapshots_count: of the table as it is, that it made.
        last_ms: when it made the last of them, epoch milliseconds.
        problem: why it cannot go on with the newer format version; empty where it can.
        is_known: whether it is known that it can, or that it cannot.
    """

    name: str
    snapshots_count: int
    last_ms: int
    problem: str = ""
    is_known: bool = True


def engines_seen(snapshots: Iterable[Snapshot], format_version: int) -> tuple[EngineSeen, ...]:
    """The software that snapshots name, the one that wrote last first, and whether it goes on with a format version."""
    counts: dict[Producer, int] = {}
    last: dict[Producer, int] = {}
    for snapshot in snapshots:
        producer = producer_of(snapshot.summary)
        counts[producer] = counts.get(producer, 0) + 1
        last[producer] = max(last.get(producer, 0), snapshot.timestamp_ms)
    found = []
    for producer, count in counts.items():
        problem, is_known = _problem(producer, format_version)
        found.append(
            EngineSeen(
                name=_name(producer),
                snapshots_count=count,
                last_ms=last[producer],
                problem=problem,
                is_known=is_known,
            )
        )
    return tuple(sorted(found, key=lambda one: (-one.last_ms, one.name)))


def _name(producer: Producer) -> str:
    library = f"Iceberg {producer.library}" if producer.library else ""
    if not producer.engine:
        return f"a program with {library}" if library else "software that names itself in no summary, such as PyIceberg"
    return f"{producer.text} with {library}" if library else producer.text


def _problem(producer: Producer, format_version: int) -> tuple[str, bool]:
    """Why the producer cannot go on, empty if it can; and whether that is known."""
    by_library = producer.engine in _BY_LIBRARY
    support = SUPPORT.get(ICEBERG_JAVA if by_library else producer.engine)
    version = producer.library if by_library else producer.version
    if support is None or format_version not in support.writes:
        return "", False
    first = {"reads": support.reads.get(format_version, NEVER), "writes": support.writes[format_version]}
    if NEVER in first.values():
        lacking = [verb for verb, release in first.items() if release == NEVER]
        return f"no release of {support.name} {' or '.join(lacking)} format version {format_version}", True
    if first["writes"] == "0":
        return "", True
    found = _RELEASE.match(version)
    if found is None:
        return "", False
    given = _numbers(found[0])
    lacking = [f"{verb} it since {release}" for verb, release in first.items() if given < _numbers(release)]
    return f"{support.name} {' and '.join(lacking)}" if lacking else "", True


def _numbers(release: str) -> tuple[int, ...]:
    """A release as numbers without zeros at the end, so that 1.10 is 1.10.0."""
    numbers = [int(part) for part in release.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
