"""What a task of Airflow is to run: jobs on tables, as a listing of what is due, a form or a configuration says. Pure.

Calls travel through XCom as units, in JSON (`packed`, `unpacked`): one mapped task group works on a unit.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from icekeep.decoding import from_plain
from icekeep.errors import UsageError, and_more
from icekeep.names import FullName
from icekeep.policies.resolution import DRY_RUN, window_of
from icekeep.policies.values import Layer, Policy, Rules
from icekeep.policies.windows import closes_ms


class JobOnTable(msgspec.Struct, frozen=True, kw_only=True):
    """One job on one table.

    Attributes:
        arguments: of its command line, besides the table.
        submit: whether it runs by spark-submit; else by a process of the worker.
        until_ms: when its window closes, epoch milliseconds: it does not begin then or later.
    """

    job: str
    table: str
    arguments: tuple[str, ...] = ()
    submit: bool = True
    until_ms: int | None = None


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that belong together; `name` is shown in Airflow's grid."""

    name: str
    calls: tuple[JobOnTable, ...]


def packed(units: Sequence[Unit]) -> list[Any]:
    """As XCom holds them."""
    # XCom writes a tuple as an object of its own kind; JSON has lists.
    plain: list[Any] = msgspec.json.decode(msgspec.json.encode(units))
    return plain


def unpacked(unit: Any) -> Unit:
    """What `packed` has made of a unit."""
    return from_plain(unit, Unit)


def units_of(calls: Sequence[JobOnTable], units_count_max: int) -> list[Unit]:
    """A unit a table, in the order of `calls`; where that would be too many, several tables that need no Spark share one first.

    >>> [unit.name for unit in units_of([JobOnTable(job="compact", table=f"c.db.t{n}", submit=False) for n in range(5)], 2)]
    ['c.db.t0 and 2 more', 'c.db.t3 and 1 more']
    """
    of_table: dict[str, list[JobOnTable]] = {}
    for call in calls:
        of_table.setdefault(call.table, []).append(call)
    if len(of_table) <= units_count_max:
        return [_unit([table], of_table) for table in of_table]
    large = [table for table, of in of_table.items() if any(call.submit for call in of)]
    small = [table for table in of_table if table not in {*large}]
    large_units = _shared(large, max(1, units_count_max // 2) if small else units_count_max)
    small_units = _shared(small, max(1, units_count_max - len(large_units)))
    return [_unit(tables, of_table) for tables in (*large_units, *small_units)]


def _shared(tables: Sequence[str], units_count: int) -> list[tuple[str, ...]]:
    """Tables in at most so many parts of nearly the same length."""
    length = -(-len(tables) // units_count) or 1
    return [tuple(tables[at : at + length]) for at in range(0, len(tables), length)]


def _unit(tables: Sequence[str], of_table: Mapping[str, Sequence[JobOnTable]]) -> Unit:
    return Unit(
        name=f"{tables[0]}{and_more(tables)}", calls=tuple(call for table in tables for call in of_table[table])
    )


def due_calls(found: Mapping[str, Any], policy: Policy, rules: Rules, now_ms: int) -> list[JobOnTable]:
    """The calls that `maintain --list` names, in its order."""
    limit_bytes, calls = policy.submit_over_bytes, []
    for table in found["tables"]:
        for job in table["jobs"]:
            if job["policy"] != policy.name:
                continue
            window = window_of(rules, policy.name, table["table"], job["job"])
            call = JobOnTable(
                job=job["job"],
                table=table["table"],
                arguments=(*job["arguments"], *([DRY_RUN] if job["observes"] else [])),
                submit=limit_bytes is not None and job["estimate_bytes"] > limit_bytes,
                until_ms=None if window is None else closes_ms(window, now_ms),
            )
            calls.append(call)
    return calls


SUBMIT, WORKER = "spark-submit", "worker"


def asked_call(params: Mapping[str, Any], now_ms: int) -> JobOnTable:
    """What somebody has typed into the form of the DAG by hand; raises `UsageError` where the job would not understand it.

    The form is for a job's settings alone: where the configuration is and where results go, the DAG says.
    """
    # Of all that imports this, only the DAG by hand parses command lines.
    from icekeep.operations.arguments import Command, parse_command

    job, table, arguments = str(params["job"]), str(params["table"]).strip(), tuple(map(str, params["arguments"] or ()))
    FullName.parse(table)
    try:
        command = parse_command([f"--table={table}", *arguments], job, now_ms)
    except SystemExit:
        raise UsageError("the arguments ask for help; give settings of the job") from None
    plain = Command(
        name=job,
        verbose=command.verbose,
        table=table,
        dry_run=command.dry_run,
        arguments=command.arguments,
    )
    if command != plain:
        raise UsageError(
            "the arguments name a table, a catalog, a configuration or an output; give settings of the job"
        )
    dry_run = (DRY_RUN,) if params["dry_run"] and not command.dry_run else ()
    return JobOnTable(job=job, table=table, arguments=(*arguments, *dry_run), submit=params["run_by"] == SUBMIT)


_KEYS = ("connection", "deploy_mode", "py_files", "archives", "files")
_CONF = "spark_conf."


def submit_arguments(policy: Policy) -> dict[str, Any]:
    """How the jobs of a policy are submitted."""
    given = {key: getattr(policy, key) for key in _KEYS}
    return _arguments(given, dict(policy.spark_conf))


def arguments_of_defaults(defaults: Layer) -> dict[str, Any]:
    """How a job is submitted that no policy asks for."""
    given = {key: defaults.keys[key].value for key in _KEYS if key in defaults.keys}
    conf = {key.removeprefix(_CONF): one.value for key, one in defaults.keys.items() if key.startswith(_CONF)}
    return _arguments(given, conf)


def _arguments(given: Mapping[str, Any], conf: Mapping[str, str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {"conf": {**conf}}
    if given.get("connection"):
        arguments["conn_id"] = given["connection"]
    if given.get("deploy_mode"):
        arguments["deploy_mode"] = given["deploy_mode"]
    return arguments | {key: ",".join(given[key]) for key in ("py_files", "archives", "files") if given.get(key)}
