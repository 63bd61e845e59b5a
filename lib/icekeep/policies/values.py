"""Policies, the layers that change what they say for some tables, and the patterns by which they name tables.

What a file, a catalog or a table's owner says is a `Layer`: keys with their values, their source, and what that means.
Layers lie one within the other: the defaults of the file, the policy, what the catalog has stored, the catalog's and
the namespaces' layers of the file from the outermost namespace to the innermost, the table's layer of the file, and the
table's own properties. For each key the innermost that has it decides; no other key changes by that.

A pattern is of full names, `catalog.namespace.table`, in the spelling of `icekeep.names`. `*` is any text within one
part, the empty text too; `**` stands alone as a part, for any number of parts. At the end of a pattern it is one part
or more, so that `prod.sales.**` is what lies below `prod.sales`, and no table of that name. Upper and lower case
differ, as in the catalogs. A part in quotes is no pattern but a name, so that the name of a table is the pattern of
this table alone.
"""

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cached_property
from typing import Any

import msgspec

from icekeep.errors import UsageError
from icekeep.names import FULL_NAME, can_be_part, catalog_of, is_quoted, join_parts, split_name, written_parts
from icekeep.spec.types import GIB

MANY = "**"
_LIKE_OTHER_GLOBS = frozenset("?[]{}!")
_BETWEEN = "\0"
"""What stands between the parts of a name while it is compared, since a part may have dots but no control characters."""
_IN_PART = f"[^{_BETWEEN}]"


class Glob(msgspec.Struct, frozen=True, dict=True):
    """A pattern; `text` is as somebody wrote it."""

    text: str

    def matches(self, name: str) -> bool:
        """Whether it is a pattern of this full name.

        >>> glob = parse_glob("prod.*.orders_*")
        >>> glob.matches("prod.sales.orders_eu"), glob.matches("prod.sales.eu.orders_eu")
        (True, False)
        >>> glob.matches("prod.sales.`orders_v1.2`")
        True
        >>> parse_glob("prod.**").matches("prod.sales.eu.orders_eu")
        True
        """
        return self._expression.fullmatch(_BETWEEN.join(split_name(name))) is not None

    def may_match_in(self, namespace: str) -> bool:
        """Whether a table of this namespace, but of none below it, can have a name that it matches.

        >>> glob = parse_glob("prod.*.orders_*")
        >>> glob.may_match_in("prod.sales"), glob.may_match_in("prod.sales.eu")
        (True, False)
        """
        return self._of_namespaces.fullmatch(_BETWEEN.join((*split_name(namespace), ""))) is not None

    @property
    def catalog(self) -> str | None:
        """The one catalog whose tables it can match, `None` where its first part is a pattern."""
        first = written_parts(self.text)[0]
        return None if _is_pattern(first) else catalog_of(self.text)

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        *before, last = written_parts(self.text)
        below = rf"{_IN_PART}+(?:{_BETWEEN}{_IN_PART}+)*"
        return re.compile(_before(before) + (below if last == MANY else _one(last)), re.DOTALL)

    @cached_property
    def _of_namespaces(self) -> re.Pattern[str]:
        *before, last = written_parts(self.text)
        return re.compile(_before([*before, MANY] if last == MANY else before), re.DOTALL)


def parse_glob(text: str, form: str = FULL_NAME) -> Glob:
    """Read a pattern.

    Args:
        form: of the names that it is for, `FULL_NAME` or `NAME_IN_CATALOG`.

    Raises:
        UsageError: it can match no table, or has signs of other kinds of patterns.
    """
    parts = written_parts(text)
    if not all(map(can_be_part, parts)):
        raise UsageError(f"{text!r} is no pattern; give {form}, with * within a part and ** over parts")
    unquoted = [part for part in parts if not is_quoted(part)]
    if foreign := sorted(_LIKE_OTHER_GLOBS & {*"".join(unquoted)}):
        raise UsageError(
            f"{text!r} has {foreign[0]!r}, which is no sign of a pattern here; there is * within a part and **"
        )
    for part in unquoted:
        if MANY in part and part != MANY:
            raise UsageError(f"{text!r} has ** beside other signs; ** stands alone between dots, * within a part")
    if len(parts) <= form.count(".") and MANY not in parts:
        first = form.partition(".")[0]
        raise UsageError(f"{text!r} can match no table; give {form}, or {first}.** for all of a {first.lower()}")
    return Glob(text)


def _before(parts: Iterable[str]) -> str:
    """What matches all parts of a name but the last. Each ends with its dot, so that `**` may be no part at all."""
    return "".join(f"(?:{_IN_PART}*{_BETWEEN})*" if part == MANY else _one(part) + _BETWEEN for part in parts)


def _one(part: str) -> str:
    """What matches a part of a name.

    What is in quotes matches itself. Of a text between stars the first place is as good as any: none other is tried.
    """
    first, *others = map(re.escape, part.split("*") if _is_pattern(part) else split_name(part))
    if not others:
        return first
    return first + "".join(f"(?>{_IN_PART}*?{text})" for text in others[:-1]) + f"{_IN_PART}*" + others[-1]


def _is_pattern(part: str) -> bool:
    return "*" in part and not is_quoted(part)


ENABLED = "enabled"
MODE = "mode"
WINDOW = "window"
WHEN = "when"
SUBMIT_OVER = "submit_over"
SUBMIT_OVER_BYTES = 2 * GIB
"""What one process reads and rewrites about as soon as Spark has begun (`planning/spark/session.py`)."""


class Mode(Enum):
    """Whether jobs do their work, or only tell what they would do."""

    RUN = "run"
    OBSERVE = "observe"


class LayerKind(Enum):
    """Who says what a layer says."""

    DEFAULTS = "defaults"
    POLICY = "policy"
    STORED = "catalog"
    NAMESPACE = "namespace"
    TABLE = "table"
    PROPERTIES = "table property"


class PolicyValue(msgspec.Struct, frozen=True):
    """What somebody says of one key.

    Attributes:
        text: as people read it.
        value: what it means; of a job's setting the arguments of its command line, which a switch that is off has none of.
        source: where it stands, such as "conf/icekeep.yaml: defaults.jobs.compact.where".
        order: where a setting stands among those of its job.
    """

    text: str
    value: Any
    source: str
    order: int = 0


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """What is said at one place.

    Attributes:
        name: of the policy, namespace or table; what people are told of it.
        keys: what is said of all jobs: `enabled`, `mode`, `window`; by defaults and policies what schedulers need, too.
        jobs: by job: its settings, an option or pair as `options.NAME`; `enabled`; conditions as `when.NAME`.
        is_doubtful: whether it says something that cannot be read, so that no job may run by it; `doubtful_jobs` are those of
            which alone that is true.
    """

    kind: LayerKind
    name: str = ""
    keys: Mapping[str, PolicyValue] = {}
    jobs: Mapping[str, Mapping[str, PolicyValue]] = {}
    is_doubtful: bool = False
    doubtful_jobs: frozenset[str] = frozenset()

    def of_job(self, job: str | None) -> Mapping[str, PolicyValue]:
        """What is said of a job, or with `None` of all."""
        return self.keys if job is None else self.jobs.get(job, {})


class JobCall(msgspec.Struct, frozen=True):
    """A job and the arguments of its command line, besides the table."""

    job: str
    arguments: tuple[str, ...]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs on tables on a schedule.

    Attributes:
        schedule: cron in UTC, null to run only when somebody asks.
        tables: full names, `catalog.namespace.table`, sorted.
        match: patterns of tables that it reaches as well.
        excepted: patterns of tables that it does not reach.
        catalogs: those whose tables are reached by patterns that name no catalog: those of the file, as others that this machine
            knows may be somebody else's. `None`: all.
        layer: what it says of its jobs; which these are.
        calls: in the order in which they run on a table; what defaults and the policy say, and no other layer.
        retries: how often the scheduler tries a task again that ended with status 1, 3 or 75.
        timeout_ms: how long one task may take, `None` for as long as it wants.
        pool: the scheduler's pool that limits how many tasks run at once.
        connection: the scheduler's name of the Spark cluster.
        deploy_mode: `client` or `cluster`; `None` for what the connection says.
        py_files, archives, files: what spark-submit sends along, an archive with its alias as `FILE#ALIAS`.
        submit_over_bytes: a scheduler that knows how much a job would read submits to Spark those that would read more than this
            and runs the others by itself; `None` where it runs all by itself.
    """

    name: str
    schedule: str | None
    tables: tuple[str, ...]
    calls: tuple[JobCall, ...]
    layer: Layer
    match: tuple[Glob, ...] = ()
    excepted: tuple[Glob, ...] = ()
    catalogs: frozenset[str] | None = None
    retries: int = 2
    retry_delay_ms: int = 300_000
    timeout_ms: int | None = None
    pool: str | None = None
    connection: str = "spark_default"
    deploy_mode: str | None = None
    py_files: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    submit_over_bytes: int | None = SUBMIT_OVER_BYTES
    spark_conf: tuple[tuple[str, str], ...] = ()

    def reaches(self, table: str) -> bool:
        """Whether it is about a table, by its full name."""
        catalog = catalog_of(table)
        is_meant = table in self.tables or any(
            self._is_for(glob, catalog) and glob.matches(table) for glob in self.match
        )
        return is_meant and not any(glob.matches(table) for glob in self.excepted)

    def may_reach_in(self, catalog: str) -> bool:
        """Whether it can be about a table of this catalog."""
        is_listed = any(catalog_of(table) == catalog for table in self.tables)
        return is_listed or any(self._is_for(glob, catalog) for glob in self.match)

    def _is_for(self, glob: Glob, catalog: str) -> bool:
        if glob.catalog is None:
            return self.catalogs is None or catalog in self.catalogs
        return glob.catalog == catalog


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """All that a configuration says of the maintenance of tables.

    Attributes:
        policies: in the order of the file: of two that name a job and reach a table the first decides of it.
        job_names: all jobs that a policy may ask for, in the order in which they run on a table.
        namespaces: by `catalog` or `catalog.namespace`.
        tables: by full name.
    """

    defaults: Layer = Layer(kind=LayerKind.DEFAULTS)
    policies: tuple[Policy, ...] = ()
    job_names: tuple[str, ...] = ()
    namespaces: Mapping[str, Layer] = {}
    tables: Mapping[str, Layer] = {}

    def layers_of(self, table: str) -> tuple[Layer, ...]:
        """The file's layers of a table, but for defaults and policies, the outermost first."""
        parts = split_name(table)
        above = [self.namespaces.get(join_parts(parts[:count])) for count in range(1, len(parts))]
        return tuple(layer for layer in (*above, self.tables.get(table)) if layer is not None)
