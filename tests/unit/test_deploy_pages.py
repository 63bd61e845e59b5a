"""docs/deploy says of limits, of Spark's settings and of the package's extras what the code has."""

import re
import tomllib
from pathlib import Path

from icekeep.planning.spark import session
from icekeep.planning.spark.session import LIMITS
from icekeep.spec.types import GIB, MIB
from icekeep.version import ICEKEEP_VERSION

ROOT = Path(__file__).parents[2]
SPARK = (ROOT / "docs" / "deploy" / "spark.md").read_text()
INDEX = (ROOT / "docs" / "deploy" / "index.md").read_text()
INSTALL = (ROOT / "docs" / "install.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def rows(text):
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    return {first: rest for first, *rest in cells}


def test_limits_from_which_spark_works_are_those_of_the_code():
    told = {first: rest[0] for first, rest in rows(SPARK).items()}
    (rewritten,) = (value for name, value in told.items() if "bytes of files that are rewritten" in name)
    assert rewritten.startswith(f"{LIMITS.rewrite_bytes // GIB} GiB; {LIMITS.submitted_rewrite_bytes // MIB} MiB under")
    assert rewritten.endswith(
        f"; {LIMITS.session_rewrite_bytes // MIB} MiB where a session with a local master is given"
    )
    opened = told[next(name for name in told if name.startswith("the same: files that are opened"))]
    assert opened == f"{LIMITS.waiting_files_count}"
    deletes = told[
        "a group of `rewrite_position_deletes` that the driver does in any run, and that counts for neither limit"
    ]
    assert deletes == f"{LIMITS.delete_group_files_count} files, {LIMITS.delete_group_bytes // MIB} MiB"
    entries = told["scan planning, reports, manifests: entries"]
    assert entries.startswith(f"{LIMITS.folded_entries_count:,}; {LIMITS.matched_entries_count:,} where")
    garbage = told["`expire_snapshots`: entries that tell garbage from what is in use"]
    assert garbage == f"{LIMITS.reachable_entries_count:,}"
    assert told["`remove_orphan_files`: files of the listing"] == f"{LIMITS.listed_files_count:,}"
    assert told["files that are deleted, or moved to the trash"] == f"{LIMITS.deleted_files_count:,}"


def test_settings_of_a_session_are_told():
    told = {name: rest[0] for first, rest in rows(SPARK).items() for name in re.findall(r"`(spark\.[\w.]+)`", first)}
    settings = session.session_settings({"spark.master": "local[2]"}, {})
    # What depends on where icekeep lies.
    settings = {
        key: value
        for key, value in settings.items()
        if key not in ("spark.executorEnv.PYTHONPATH", "spark.driver.extraJavaOptions")
    }
    assert {*settings} <= {*told}
    for key in ("spark.log.level", "spark.ui.showConsoleProgress", "spark.ui.enabled"):
        assert told[key].startswith(f"`{settings[key]}`")
    on_a_cluster = session.session_settings({"spark.master": "yarn"}, {})
    local = {key for key, text in told.items() if "with a local master" in text}
    assert local == {*settings} - {*on_a_cluster}


def test_every_page_has_a_row_that_says_whether_it_is_run():
    pages = {path.name for path in (ROOT / "docs" / "deploy").glob("*.md")} - {"index.md"}
    told = {link: rest[0] for first, rest in rows(INDEX).items() for link in re.findall(r"\]\(([\w]+\.md)\)", first)}
    assert {*told} == pages
    for name in pages - {"spark.md"}:
        text = (ROOT / "docs" / "deploy" / name).read_text().lower()
        is_untested = any(words in text for words in ("not tested: written from", "not run by us", "not run here"))
        assert told[name].startswith("no") == is_untested, name


def test_every_extra_has_a_row():
    told = [first.strip("`") for first in rows(INSTALL) if first.startswith("`")]
    assert sorted(told) == sorted(PROJECT["optional-dependencies"])


def test_the_wheel_that_pages_name_is_that_of_this_version():
    named = re.findall(r"icekeep-(\d+\.\d+\.\d+)-py3", INSTALL) + re.findall(r"icekeep:(\d+\.\d+\.\d+)", INDEX + SPARK)
    assert named
    assert {*named} == {ICEKEEP_VERSION}
