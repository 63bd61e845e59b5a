"""What each job can be told, said once: flags of the command line and keys of a policy are made from this.

A setting is an argument of Iceberg's procedure under its own name; its flag has dashes where the name has underscores. The
commands beside the jobs have settings of the same make (`verbs.py`). Here text is checked as far as that needs no table; a
scheduler that only reads the configuration does the same.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from icekeep.errors import ExpressionError, UsageError
from icekeep.operations.documents import Entry
from icekeep.operations.times import parse_span, parse_time
from icekeep.spec.filters.parsing import parse_where

_MAX_LONG = 2**63 - 1
_ALL = "all"


class Kind(Enum):
    """What a setting's value is; the text is how a usage line shows it. A filter is over rows, or over manifests."""

    TEXT = "TEXT"
    NAME = "NAME"
    FILTER = "EXPR"
    MANIFEST_FILTER = "FILTER"
    TIME = "TIME"
    AGE = "AGE"
    NUMBER = "N"
    NUMBER_OR_ALL = "N|all"
    IDS = "ID,ID"
    NAMES = "NAME,NAME"
    SWITCH = ""
    OPTIONS = "KEY=VALUE"
    PAIRS = "FROM=TO"


class Setting(msgspec.Struct, frozen=True):
    """One thing a job or a command can be told.

    Attributes:
        keyword: the function's argument where it is not the setting's name.
        is_positional: stands without a flag, and must be given.
        is_required: must be given, behind its flag.
    """

    name: str
    kind: Kind
    help: str
    minimum: int = 0
    keyword: str = ""
    is_positional: bool = False
    is_required: bool = False

    @property
    def flag(self) -> str:
        """The flag of the command line."""
        return "--" + ("option" if self.kind is Kind.OPTIONS else self.name.replace("_", "-"))

    @property
    def argument(self) -> str:
        """The function's keyword argument."""
        return self.keyword or self.name


_WHERE = Setting("where", Kind.FILTER, "only what a filter can match, e.g. \"day >= '2026-01-01'\"")

_BRANCH = Setting("branch", Kind.NAME, "the branch to work on and to commit to (default: main)")

_OPTIONS_OF_DELETION = Setting(
    "options",
    Kind.OPTIONS,
    "grace, keep-writer-progress, max-deletes-per-second, reclaim.roots; may be repeated",
)
_MAX_CONCURRENT_DELETES = Setting(
    "max_concurrent_deletes", Kind.NUMBER, "so many calls that delete at once, at most", minimum=1
)
_STREAM_RESULTS = Setting("stream_results", Kind.SWITCH, "as Iceberg's; lists of files are always streamed here")
_TRASH = Setting(
    "trash",
    Kind.NUMBER,
    "days that deleted files can be restored; 0: none (default: 3 on local disks and HDFS, else 0)",
)
_APPROVE = Setting("approve", Kind.TEXT, "the hash that --dry-run tells: exactly that set goes, or nothing")
_TRUST_MANIFEST_LIST = Setting(
    "trust_manifest_list", Kind.SWITCH, "go on where a snapshot's summary counts other files than its manifest list"
)
_ACCEPT_UNREADABLE = Setting(
    "accept_unreadable",
    Kind.NAMES,
    "go on although these tables of the catalog cannot be loaded, since they lie elsewhere",
)

JOB_SETTINGS: Mapping[str, tuple[Setting, ...]] = {
    "plan_scan": (
        _WHERE,
        Setting("ref", Kind.NAME, "the branch or tag to read (default: main)"),
        Setting("snapshot_id", Kind.NUMBER, "read this snapshot"),
        Setting("as_of", Kind.TIME, "read what was current at a time, or an age ago"),
        Setting("start_snapshot_id", Kind.NUMBER, "read only what was appended after this snapshot"),
        Setting("end_snapshot_id", Kind.NUMBER, "... up to this one (default: the current one)"),
        Setting("explain", Kind.NAME, "say why this data file (its location, or the end of it) is read or pruned"),
    ),
    "compact": (
        Setting("strategy", Kind.NAME, "binpack or sort (default: binpack, or sort where an order is given)"),
        Setting(
            "sort_order",
            Kind.TEXT,
            'of a sort, e.g. "day, id DESC NULLS LAST", "zorder(a, b)", "hilbert(a, b)" (default: the table\'s)',
        ),
        _WHERE,
        Setting("options", Kind.OPTIONS, "an option of Iceberg's rewrite_data_files; may be repeated"),
        _BRANCH,
        Setting(
            "verify", Kind.SWITCH, "before each commit, read the new files again and compare the content of all rows"
        ),
    ),
    "rewrite_position_deletes": (
        _WHERE,
        Setting("options", Kind.OPTIONS, "an option of Iceberg's rewrite_position_delete_files; may be repeated"),
        _BRANCH,
        Setting(
            "convert_equality_deletes", Kind.SWITCH, "turn equality deletes into position deletes or vectors first"
        ),
    ),
    "rewrite_manifests": (
        Setting(
            "spec_id",
            Kind.NUMBER_OR_ALL,
            "the partition spec whose manifests are rewritten, or all (default: the current one)",
        ),
        Setting(
            "sort_by", Kind.TEXT, "cluster by these partition fields, or columns' lower bounds, separated by commas"
        ),
        Setting(
            "where",
            Kind.MANIFEST_FILTER,
            'only manifests that match, e.g. "manifest_length < 1000000"; Iceberg\'s rewriteIf',
        ),
        Setting("workload", Kind.TEXT, "cluster for these filters over the table, separated by semicolons"),
        Setting("use_caching", Kind.SWITCH, "as Iceberg's; entries are read once here"),
        Setting("options", Kind.OPTIONS, "drop-dangling-deletes, measure-planning; may be repeated"),
        _BRANCH,
    ),
    "expire_snapshots": (
        Setting("older_than", Kind.TIME, "expire snapshots older than a time or an age (default: as the table says)"),
        Setting("retain_last", Kind.NUMBER, "keep this many snapshots of each branch at least", minimum=1),
        Setting("snapshot_ids", Kind.IDS, "expire these snapshots, whatever their age"),
        Setting(
            "clean_expired_metadata", Kind.SWITCH, "drop schemas and partition specs that no snapshot needs any more"
        ),
        _MAX_CONCURRENT_DELETES,
        _STREAM_RESULTS,
        _TRASH,
        _APPROVE,
        _TRUST_MANIFEST_LIST,
        _OPTIONS_OF_DELETION,
    ),
    "remove_orphan_files": (
        Setting("older_than", Kind.TIME, "files that are older than a time or an age, 24h at least (default: 3d)"),
        Setting("location", Kind.TEXT, "the directory to look at (default: the table's location)"),
        _MAX_CONCURRENT_DELETES,
        Setting("file_list_view", Kind.TEXT, "a view, table or Parquet inventory of files, in place of a listing"),
        Setting("equal_schemes", Kind.PAIRS, "schemes that mean one store, e.g. s3a,s3n=s3; may be repeated"),
        Setting("equal_authorities", Kind.PAIRS, "authorities that mean one store, e.g. nn1,nn2=nn; may be repeated"),
        Setting(
            "prefix_mismatch_mode", Kind.NAME, "ERROR or IGNORE where only scheme or authority differ (default: ERROR)"
        ),
        Setting("prefix_listing", Kind.SWITCH, "as Iceberg's; files are always listed flat and side by side here"),
        _STREAM_RESULTS,
        _TRASH,
        _APPROVE,
        Setting("force", Kind.SWITCH, "go on although more than max-orphan-ratio of the files would go"),
        _TRUST_MANIFEST_LIST,
        _ACCEPT_UNREADABLE,
        msgspec.structs.replace(
            _OPTIONS_OF_DELETION,
            help="grace, max-orphan-ratio, ignore-metadata-of, max-deletes-per-second, reclaim.roots; may be repeated",
        ),
    ),
    "drop": (
        Setting("purge", Kind.SWITCH, "also delete every file that its metadata leads to; nothing of it comes back"),
        _MAX_CONCURRENT_DELETES,
        _APPROVE,
        _TRUST_MANIFEST_LIST,
        _ACCEPT_UNREADABLE,
        msgspec.structs.replace(_OPTIONS_OF_DELETION, help="max-deletes-per-second, reclaim.roots; may be repeated"),
    ),
}
"""The settings of each job, in the order in which help lists them."""

JOB_SUMMARIES: Mapping[str, str] = {
    "plan_scan": "show the files that a filter would read, and what pruning saves",
    "compact": "rewrite badly sized data files (Iceberg's rewrite_data_files)",
    "rewrite_position_deletes": "merge position deletes, drop dangling ones (Iceberg's rewrite_position_delete_files)",
    "rewrite_manifests": "cluster and resize manifests (Iceberg's rewrite_manifests)",
    "expire_snapshots": "expire snapshots by retention, then delete the files that only they needed",
    "remove_orphan_files": "delete files that no snapshot knows (Iceberg's remove_orphan_files)",
    "drop": "forget a table and, with --purge, delete its files",
}

MAINTENANCE_ORDER = (
    "compact",
    "rewrite_position_deletes",
    "rewrite_manifests",
    "expire_snapshots",
    "remove_orphan_files",
)
"""The jobs that a policy may ask for, in the order in which they run on a table: each makes garbage for the next to last."""


def parse_setting(setting: Setting, text: str, now_ms: int) -> Any:
    """The value of a setting from the text behind its flag; a filter and options stay text.

    Raises:
        UsageError: the text is no value of this kind; does not name the flag.
    """
    match setting.kind:
        case Kind.TIME:
            return parse_time(text, now_ms)
        case Kind.AGE:
            return _span(text, setting.minimum)
        case Kind.NUMBER:
            return _whole_number(text, setting.minimum)
        case Kind.NUMBER_OR_ALL:
            return text if text == _ALL else _whole_number(text, setting.minimum)
        case Kind.IDS:
            return tuple(_whole_number(part.strip(), 0) for part in text.split(","))
        case Kind.NAMES:
            return _names(text)
        case _:
            return text


def parse_option(text: str) -> tuple[str, str]:
    """`KEY=VALUE` as a pair; raises `UsageError`."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{text!r} is not of the form KEY=VALUE")
    return key.strip(), value.strip()


def read_setting(setting: Setting, entry: Entry) -> tuple[str, ...]:
    """The command line arguments that say what an entry of a policy says.

    Raises:
        ConfigError: the entry's value is not of the setting's kind.
    """
    match setting.kind:
        case Kind.SWITCH:
            return (setting.flag,) if entry.boolean() else ()
        case Kind.OPTIONS | Kind.PAIRS:
            pairs = [f"{key}={below.scalar()}" for key, below in entry.mapping().items()]
            return tuple(f"{setting.flag}={pair}" for pair in pairs)
        case Kind.NUMBER:
            text = str(entry.whole_number(minimum=setting.minimum))
        case Kind.IDS | Kind.NAMES:
            text = _joined(setting, entry)
        case Kind.TIME | Kind.NUMBER_OR_ALL:
            text = entry.scalar()
            _check(setting, text, entry)
        case Kind.AGE:
            text = entry.text()
            _check(setting, text, entry)
        case Kind.FILTER | Kind.MANIFEST_FILTER:
            text = entry.text()
            _check_filter(text, entry)
        case Kind.TEXT | Kind.NAME:
            text = entry.text()
    # One argument, so that a value that begins with a dash is not taken for a flag.
    return (f"{setting.flag}={text}",)


def _joined(setting: Setting, entry: Entry) -> str:
    """The values of a list, as the command line takes them."""
    items = entry.sequence()
    if not items:
        raise entry.wrong("is empty")
    if setting.kind is Kind.IDS:
        return ",".join(str(below.whole_number(minimum=0)) for below in items)
    text = ",".join(below.text() for below in items)
    _check(setting, text, entry)
    return text


def _check(setting: Setting, text: str, entry: Entry) -> None:
    try:
        parse_setting(setting, text, now_ms=0)
    except UsageError as error:
        raise entry.wrong(error.message) from None


def _check_filter(text: str, entry: Entry) -> None:
    try:
        parse_where(text, moment_ms=0)
    except ExpressionError as error:
        raise entry.wrong(error.message) from None


def _span(text: str, minimum: int) -> int:
    span_ms = parse_span(text)
    if span_ms < minimum:
        raise UsageError(f"the span {text!r} is too short")
    return span_ms


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if "." not in name or not all(name.split(".")):
            raise UsageError(f"{name!r} in {text!r} names no table; give NAMESPACE.TABLE, several with commas between")
    return names


def _whole_number(text: str, minimum: int) -> int:
    if not (text.isascii() and text.isdigit()) or not minimum <= int(text[:20]) <= _MAX_LONG or len(text) > 19:
        raise UsageError(f"{text!r} is not a whole number of {minimum} or more")
    return int(text)
