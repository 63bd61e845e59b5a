"""What the command `init` does: a first configuration is written, and the catalog in it is opened as `doctor` opens it.

The file that comes out holds no secret: a property that is one must refer to an environment variable. A file that is there is
never touched.
"""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TextIO

import msgspec
import yaml

from icekeep.catalog.open import catalog_type
from icekeep.errors import IcekeepError, UsageError
from icekeep.events import SILENT, Listener
from icekeep.operations.configuration.file import config_words, is_catalog_name, parse_config
from icekeep.operations.configuration.setting_values import parse_option
from icekeep.operations.console.output import written_at_once
from icekeep.operations.doctor.driver import OK, Finding
from icekeep.operations.doctor.examination import examine_opening
from icekeep.operations.loading import configured_catalogs
from icekeep.secrets import MASK, is_secret, masked
from icekeep.settings import CATALOG_TYPES, CONFIG_PATH

_NAME = "lake"
_HEAD = """\
# The configuration of icekeep. `icekeep config show` prints what is in force.
# ${NAME} is the environment variable NAME: passwords, tokens and keys belong there, and not in this file.
"""
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_SECRET_BY_REFERENCE = re.compile(rf"(?:[\w.@-]+[: ])?{_REFERENCE.pattern}")
"""A variable alone, or behind what names its owner or its kind: `CLIENT:${SECRET}`, `Bearer ${TOKEN}`."""


class Question(msgspec.Struct, frozen=True):
    """A property that catalogs of a type have.

    Attributes:
        what: it is, as a question and an error say.
    """

    key: str
    what: str
    is_required: bool = False


_DATABASE = (
    Question("uri", "the database: sqlite:///PATH or postgresql://USER:${VARIABLE}@HOST/DATABASE", True),
    Question("warehouse", "where new tables go: a directory, or s3://BUCKET/PATH and the like"),
)
_DIRECTORIES = (
    Question("warehouse", "the directory of the tables: a path, s3://BUCKET/PATH or hdfs://HOST/PATH", True),
)
_ADDITIONAL_WAREHOUSE = Question("warehouse", "where new tables go, such as s3://BUCKET/PATH")
QUESTIONS: Mapping[str, tuple[Question, ...]] = {
    "sql": _DATABASE,
    "jdbc": _DATABASE,
    "filesystem": _DIRECTORIES,
    "hadoop": _DIRECTORIES,
    "rest": (
        Question("uri", "the address of the server, such as https://HOST/api", True),
        Question("warehouse", "the warehouse, as the server calls it"),
    ),
    "hive": (Question("uri", "the address of the metastore: thrift://HOST:9083", True), _ADDITIONAL_WAREHOUSE),
    "glue": (_ADDITIONAL_WAREHOUSE,),
}
"""What is asked, by the type of the catalog."""

_KEYS = ("type", "uri", "warehouse")
"""The properties that have a flag of their own."""


class InitResult(msgspec.Struct, frozen=True, kw_only=True):
    """A first configuration.

    Attributes:
        status: `ok` if the catalog opened and listed its namespaces, `wrong` or `unavailable` if not. The file is written in any
            case.
        file: the path of the file.
        catalog: the name of the catalog in it.
        findings: what `doctor` says of opening the catalog.
        next: commands to go on with.
    """

    status: str
    file: str
    catalog: str
    findings: tuple[Finding, ...]
    next: tuple[str, ...]


def init(
    *,
    name: str | None = None,
    kind: str | None = None,
    uri: str | None = None,
    warehouse: str | None = None,
    properties: Mapping[str, str] | None = None,
    file: str = CONFIG_PATH,
    listener: Listener = SILENT,
) -> InitResult:
    """Write a configuration of one catalog, and open the catalog; nothing is written to the catalog or its store.

    What is not given is asked for where there is a terminal.

    Args:
        kind: the type of the catalog.
        properties: those beside the type, the `uri` and the `warehouse`.
        file: where it is written; directories above it are made.
    """
    if not file:
        raise UsageError("--file is empty; name the file to write")
    if os.path.lexists(file):
        raise UsageError(
            f"{file!r} is there already, and init overwrites nothing; edit it, or name another file with --file",
            path=file,
        )
    given = {key: value for key, value in zip(_KEYS, (kind, uri, warehouse), strict=True) if value is not None}
    for key, value in (properties or {}).items():
        _check_own_flag(key)
        given[key] = value
    for key, value in given.items():
        _check_property(key, value)
    name, given = _completed(name, given)
    text = _HEAD + yaml.safe_dump({"catalogs": {name: given}}, sort_keys=False, allow_unicode=True, width=1000)
    parse_config(text, file)
    _write(file, text)
    found = examine_opening(partial(configured_catalogs, file), name, listener)
    words = shlex.join(["--catalog", name, *config_words(file)])
    commands = ("doctor", "report") if found.status == OK else ("doctor",)
    return InitResult(
        status=found.status,
        file=file,
        catalog=name,
        findings=found.findings,
        next=tuple(f"icekeep {command} {words}" for command in commands),
    )


def _completed(name: str | None, given: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The name of the catalog and its properties, the type first, with the answers to what is asked."""
    with _terminal() as ask:
        if name is None:
            name = (ask(f"Name of the catalog [{_NAME}]", _check_name) if ask else "") or _NAME
        _check_name(name)
        known = dict(given)
        asks_all = ask is not None and "type" not in given
        if ask is not None and asks_all:
            known["type"] = ask(
                f"Type ({', '.join(CATALOG_TYPES)})", lambda kind: catalog_type(name or _NAME, {"type": kind})
            )
        if "type" not in known:
            raise UsageError(
                f"--type is missing, and there is no terminal to ask on; give one of {', '.join(CATALOG_TYPES)}"
            )
        for question in QUESTIONS[catalog_type(name, {"type": known["type"]})]:
            if known.get(question.key) or not (question.is_required or asks_all):
                continue
            if ask is None:
                flag = f"--{question.key}" if question.key in _KEYS else f"--property {question.key}=VALUE"
                raise UsageError(f"{flag} is missing; give {question.what}")
            optional = "" if question.is_required else " (Enter: none)"
            known[question.key] = ask(f"{question.key}: {question.what}{optional}", partial(_check_answer, question))
        while ask is not None and asks_all:
            pair = ask("Another property, as KEY=VALUE (Enter: no more)", _check_pair)
            if not pair:
                break
            known.update([parse_option(pair)])
    # The type stands first, wherever it came from.
    return name, {key: known[key] for key in dict.fromkeys(["type", *known]) if known[key]}


Ask = Callable[[str, Callable[[str], object]], str]
"""Asks until an answer passes the check, which raises an error of icekeep otherwise; returns the answer."""


@contextmanager
def _terminal() -> Iterator[Ask | None]:
    """Asks on the terminal of this process; `None` where stdin is none, so that nobody would answer.

    stdout has the result alone, and stderr may be read by lines, so that a question without an end of line would not be seen.
    """
    with ExitStack() as stack:
        ask: Ask | None = None
        if sys.stdin is not None and sys.stdin.isatty():
            # A process may have a terminal as its stdin, and yet none of its own.
            with suppress(OSError):
                reading = stack.enter_context(open("/dev/tty"))
                writing = stack.enter_context(open("/dev/tty", "w"))
                ask = partial(_answered, reading, writing)
        yield ask


def _answered(reading: TextIO, writing: TextIO, question: str, check: Callable[[str], object]) -> str:
    while True:
        writing.write(f"{question}: ")
        writing.flush()
        line = reading.readline()
        if not line:
            raise UsageError("the questions were not answered to the end; nothing is written")
        try:
            check(line.strip())
        except IcekeepError as error:
            writing.write(f"  {error.message}\n")
        else:
            return line.strip()


def _check_name(name: str) -> None:
    """An answer may be empty."""
    if name and not is_catalog_name(name):
        raise UsageError(f"{name!r} cannot name a catalog; give letters, digits, dashes and underscores")


def _check_answer(question: Question, value: str) -> None:
    if question.is_required and not value:
        raise UsageError("this must be given")
    _check_property(question.key, value)


def _check_pair(pair: str) -> None:
    if pair:
        key, value = parse_option(pair)
        _check_own_flag(key)
        _check_property(key, value)


def _check_own_flag(key: str) -> None:
    if key in _KEYS:
        raise UsageError(f"{key!r} is not given as another property; it is --{key}")


def _check_property(key: str, value: str) -> None:
    """Raises `UsageError` for a value that is a secret, or has one in it; the message does not show it."""
    if is_secret(key):
        if value and not _SECRET_BY_REFERENCE.fullmatch(value):
            raise UsageError(
                f"{key!r} is a secret, which does not go into the file; set an environment variable, and give its name as "
                f"{key}='${{NAME}}'",
                key=key,
            )
        return
    # What a variable holds does not count.
    plain = _REFERENCE.sub(MASK, value)
    if masked(key, plain) != plain:
        raise UsageError(
            f"the value of {key!r} holds a password or a key, which does not go into the file; set an environment variable, "
            "and give '${NAME}' in its place",
            key=key,
        )


def _write(file: str, text: str) -> None:
    try:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"cannot make the directory of {file!r}: {reason}; name another file with --file", path=file
        ) from error
    with written_at_once(file, "configuration", is_new=True) as stream:
        stream.write(text.encode())
