"""docs/catalogs and docs/stores.md: their configurations are read, and catalogs open; their properties are those of the code."""

import ast
import re
from pathlib import Path

import pytest
import yaml

from icekeep.catalog.clients.rest_session import ANSWER_TIMEOUT_DEFAULT_MS, CONNECT_TIMEOUT_DEFAULT_MS
from icekeep.catalog.open import open_catalog
from icekeep.errors import ConfigError, UnsupportedError
from icekeep.operations.configuration.file import parse_config
from icekeep.operations.loading import open_settings
from icekeep.storage.open import open_storage
from icekeep.storage.ranges import FIRST_ANSWER_TIMEOUT, first_answer_ms
from kit.cases import for_each

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LIB = ROOT / "lib" / "icekeep"
KINDS = ("sql", "filesystem", "rest", "hive", "glue")
PAGES = {f"catalogs/{kind}": (DOCS / "catalogs" / f"{kind}.md").read_text() for kind in ("index", *KINDS)}
PAGES["stores"] = (DOCS / "stores.md").read_text()
SNIPPETS = [
    pytest.param(block, id=f"{name}-{number}")
    for name, text in PAGES.items()
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
]
PREFIX = re.compile(r"(?:s3|gcs|adls|client|glue|hive|hdfs|rest|ssl|lock-check|jdbc)[.-][a-z0-9]")
NO_PROPERTIES = {"hive.catalog", "rest-catalog"}
"""The first only tells catalogs apart that somebody runs behind one metastore."""


class Environment(dict[str, str]):
    """Every variable is set."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return "secret"


@for_each("snippet", SNIPPETS)
def test_a_snippet_is_a_configuration_and_its_catalogs_open(snippet):
    catalogs = parse_config(snippet).catalogs
    assert catalogs
    for settings in catalogs.values():
        assert open_settings(settings, environ=Environment()).name == settings.name


@for_each("kind", KINDS)
def test_a_page_shows_a_catalog_of_its_own_kind(kind):
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGES[f"catalogs/{kind}"], re.MULTILINE | re.DOTALL)
    kinds = {one["type"] for block in blocks for one in yaml.safe_load(block)["catalogs"].values()}
    assert kind in kinds


def told(text):
    """The properties in the first cells of a page's tables."""
    cells = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def said():
    """All texts in the code of catalogs and stores; what is put together from parts is there by its last one."""
    texts = set()
    for room in ("catalog", "storage"):
        for path in sorted((LIB / room).rglob("*.py")):
            nodes = ast.walk(ast.parse(path.read_text()))
            texts |= {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return texts


SAID = said()


@for_each("page", [*PAGES])
def test_a_property_that_a_page_tells_is_one_that_the_code_reads(page):
    for name in told(PAGES[page]):
        if PREFIX.match(name):
            last = name.partition(".")[2]
            assert {name, last} & SAID or name.removesuffix(".HOST") in SAID | {"adls.sas-token"}, name


def test_every_property_that_the_code_reads_is_told():
    everything = "".join(PAGES.values())
    names = {text for text in SAID if PREFIX.match(text) and re.fullmatch(r"[a-z0-9.-]+", text)}
    names |= {text for text in SAID if re.fullmatch(r"(?:credential|oauth2-server-uri|scope|ugi|token|prefix)", text)}
    assert len(names) > 60
    missing = [name for name in sorted(names - NO_PROPERTIES) if f"`{name}" not in everything]
    assert missing == []


def test_defaults_of_waits_are_those_that_are_told():
    rest, hive = PAGES["catalogs/rest"], PAGES["catalogs/hive"]
    assert (
        f"`rest.client.connection-timeout-ms` | how long a connection may take | {CONNECT_TIMEOUT_DEFAULT_MS} |" in rest
    )
    assert f"`rest.client.socket-timeout-ms` | how long an answer may take | {ANSWER_TIMEOUT_DEFAULT_MS} |" in rest
    assert "`hive.client.socket-timeout-ms` | how long an answer may take | 300000 |" in hive
    pages = [page for page in (PAGES["catalogs/index"], PAGES["stores"]) if f"`{FIRST_ANSWER_TIMEOUT}` |" in page]
    assert [str(first_answer_ms("", {})) in page for page in pages] == [True, True]


@pytest.mark.parametrize("kind", ["dynamodb", "bigquery", "nessie"])
def test_kinds_that_are_refused_are_told(kind):
    with pytest.raises(UnsupportedError):
        open_catalog("c", {"type": kind})
    assert f"`{kind}`" in PAGES["catalogs/index"]


def test_kinds_that_there_are_have_a_row():
    rows = re.findall(r"^\| `(\w+)`(?: \(or `(\w+)`\))? \|", PAGES["catalogs/index"], re.MULTILINE)
    with pytest.raises(ConfigError) as wrong:
        open_catalog("c", {"type": "other"})
    known = wrong.value.message.partition("one of ")[2].split(", ")
    assert {name for row in rows for name in row if name} - {"type", "warehouse"} == {*known}


@for_each(
    "name",
    re.findall(
        r"`((?:s3|client|gcs|adls)\.[^`=*]+)`",
        "".join(re.findall(r"^Refused.*?\n\n", PAGES["stores"], re.MULTILINE | re.DOTALL)),
    ),
)
def test_a_property_that_is_told_to_be_refused_is(name):
    location = {"s3": "s3://b/k", "client": "s3://b/k", "gcs": "gs://b/k", "adls": "abfs://c@a/k"}[
        name.partition(".")[0]
    ]
    with pytest.raises(UnsupportedError):
        open_storage({name: "something"}).head(location)
