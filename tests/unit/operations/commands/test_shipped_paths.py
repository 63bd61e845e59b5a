import json
import re
import tomllib
from pathlib import Path

import pytest

from icekeep import cli, shipped
from icekeep.errors import UsageError
from icekeep.operations.command_specs import COMMANDS
from icekeep.operations.commands.help_pages import path
from icekeep.operations.jobs import JOBS
from icekeep.shipped import PATTERNS, shipped_file, shipped_files

ROOT = Path(__file__).parents[4]


def asked(capsys, *words):
    status = cli.main(["path", *words])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_path_of_a_file_is_printed_alone_and_can_be_opened(capsys):
    status, out, err = asked(capsys, "jobs/compact.py")
    assert (status, err) == (0, "")
    [line] = out.splitlines()
    assert Path(line).is_absolute()
    assert Path(line).read_bytes() == (ROOT / "jobs" / "compact.py").read_bytes()


def test_all_names_are_listed_where_none_is_given(capsys):
    """Each name stands on a line of its own, and can be asked for."""
    status, out, _ = asked(capsys)
    assert status == 0
    names = out.splitlines()
    scripts = {name for name in names if name.startswith("jobs/")}
    assert {f"jobs/{job}.py" for job in JOBS} < scripts <= {f"jobs/{word}.py" for word in {*JOBS, *COMMANDS}}
    assert {*names} - scripts == {
        "airflow_dags/maintenance.py",
        "conf/icekeep.example.yaml",
        "conf/log4j2-json.properties",
        "conf/log4j2.properties",
    }
    for name in names:
        assert asked(capsys, name)[1].endswith(f"/{name}\n")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("jobs/compcat.py", "did you mean 'jobs/compact.py'?"),
        ("Compact", "did you mean 'jobs/compact.py'?"),
        ("log4j2", "did you mean 'conf/log4j2-json.properties' or 'conf/log4j2.properties'?"),
        ("jobs/../conf/icekeep.example.yaml", "did you mean 'conf/icekeep.example.yaml'?"),
        ("", "`icekeep path` lists them"),
    ],
)
def test_a_wrong_name_is_one_line_with_what_may_be_meant(capsys, name, hint):
    status, out, err = asked(capsys, name)
    assert (status, out) == (2, "")
    [line] = err.splitlines()
    assert line.startswith(f"icekeep: there is no shipped file {name!r}; ")
    assert line.endswith(f"{hint}")


def test_machines_get_one_object(capsys):
    found = json.loads(asked(capsys, "conf/icekeep.example.yaml", "--output", "json")[1])["result"]
    assert found == {"path": str(shipped_file("conf/icekeep.example.yaml"))}
    assert json.loads(asked(capsys, "--output", "json")[1])["result"] == {"files": [*shipped_files()]}


def test_where_the_package_is_in_a_zip_the_error_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(shipped, "_HOME", tmp_path / "icekeep.zip" / "icekeep" / "shipped")
    assert shipped_file("jobs/compact.py") is None
    with pytest.raises(UsageError, match="imported from a zip"):
        path()


def test_edited_configuration_is_not_shipped_and_not_in_git():
    assert not [pattern for pattern in PATTERNS if Path("conf/icekeep.yaml").match(pattern)]
    assert "/conf/icekeep.yaml" in (ROOT / ".gitignore").read_text().splitlines()


def test_pages_copy_a_shipped_file_over_none_that_is_there():
    """`-n` means the same to every cp: that of GNU in all releases, of BusyBox and of the BSDs."""
    pages = [ROOT / "README.md", ROOT / "conf" / "icekeep.example.yaml", *(ROOT / "docs").rglob("*.md")]
    copies = [
        one for page in pages for one in re.findall(r"\bcp [^`\n]*icekeep(?: path |\.example)[^`\n]*", page.read_text())
    ]
    assert len(copies) == 3
    assert [one for one in copies if not one.startswith("cp -n ")] == []


def test_a_wheel_gets_what_the_command_knows():
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["icekeep"]
    assert {one.removeprefix("shipped/") for one in told if one.startswith("shipped/")} == {*PATTERNS}
