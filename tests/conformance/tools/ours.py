"""icekeep and Iceberg Java's procedures as tools."""

import datetime
from collections.abc import Mapping
from importlib.metadata import version

import icekeep
from conformance.tools.tool import COMPACT, EXPIRE, MANIFESTS, Answer, Target, Tool
from icekeep.catalog.open import open_catalog
from icekeep.runtime import SYSTEM
from kit.java import IcebergJava, JavaError
from kit.runtime import no_spark


class Icekeep(Tool):
    """The library in this process: two jobs may run at once."""

    name = "icekeep"

    def versions(self) -> Mapping[str, str]:
        return {"icekeep": version("icekeep")}

    def run(self, operation: str, target: Target) -> Answer:
        try:
            table = open_catalog("suite", {"type": "rest", "uri": target.uri}).load(tuple(target.table.split(".")))
            return Answer(changed=_JOBS[operation](table, target))
        except icekeep.IcekeepError as error:
            return Answer.of(error)


def _compact(table: icekeep.Table, _: Target) -> bool:
    done = icekeep.compact(table, no_spark, options={"rewrite-all": "true"})
    return bool(done.rewritten_data_files_count)


def _rewrite_manifests(table: icekeep.Table, _: Target) -> bool:
    return bool(icekeep.rewrite_manifests(table, no_spark).rewritten_manifests_count)


def _expire(table: icekeep.Table, target: Target) -> bool:
    moment_ms = SYSTEM.now_ms() - target.max_age_s * 1000
    done = icekeep.expire_snapshots(table, no_spark, older_than=moment_ms, retain_last=1, trash=0)
    return bool(done.expired_snapshots_count)


_JOBS = {COMPACT: _compact, MANIFESTS: _rewrite_manifests, EXPIRE: _expire}


_PROCEDURES = {
    COMPACT: ("rewrite_data_files", {"options": {"rewrite-all": "true"}}),
    MANIFESTS: ("rewrite_manifests", {}),
    EXPIRE: ("expire_snapshots", {}),
}


class Java(Tool):
    """Iceberg Java's procedures in Spark, which all runs of a process share."""

    name = "java"

    def __init__(self, java: IcebergJava | None = None) -> None:
        self._is_own, self._java = java is None, java or IcebergJava()
        self._opened = 0
        self._second: Java | None = None

    def versions(self) -> Mapping[str, str]:
        return {name.capitalize(): text for name, text in self._java.versions().items()}

    def run(self, operation: str, target: Target) -> Answer:
        self._opened += 1
        catalog = f"suite_{self._opened}"
        procedure, arguments = _PROCEDURES[operation]
        if operation == EXPIRE:
            moment = datetime.datetime.fromtimestamp(SYSTEM.now_ms() / 1000 - target.max_age_s, datetime.UTC)
            arguments = {"older_than": moment.replace(tzinfo=None), "retain_last": 1}
        try:
            self._java.open_catalog(catalog, {"type": "rest", "uri": target.uri})
            [row] = self._java.call(catalog, procedure, table=target.table, **arguments)
        except JavaError as error:
            return Answer.of(error, error.kind.rpartition(".")[2])
        return Answer(changed=any(row.values()))

    def another(self) -> Tool:
        if self._second is None:
            self._second = Java()
        return self._second

    def close(self) -> None:
        if self._second is not None:
            self._second.close()
        if self._is_own:
            self._java.close()
