"""`icekeep help`: what there are pages on, one page, and the help of a command."""

import json

import pytest

from icekeep import cli
from icekeep.operations.commands.help_pages import help_on
from icekeep.operations.runbooks import kinds, page, pages
from kit.fake_jobs import problems


def answered(capsys, *words):
    status = cli.main(words)
    out, err = capsys.readouterr()
    return status, out, err


def test_all_kinds_and_situations_are_listed(capsys):
    status, out, err = answered(capsys, "help")
    assert (status, err) == (0, "")
    listed = [line.split()[0] for line in out.splitlines() if line.startswith("  ") and not line.startswith("   ")]
    assert sorted(listed) == sorted(pages())
    assert f"  safety (4)              {page('safety').title}\n" in out
    assert out.index("\n  undelivered (1, 3) ") < out.index("situations") < out.index("\n  dropped-table ")
    assert out.endswith("`icekeep help COMMAND` shows the help of one\n")


@pytest.mark.parametrize("name", sorted(pages()))
def test_a_page_is_plain_text(name, capsys):
    status, out, err = answered(capsys, "help", name)
    assert (status, err) == (0, "")
    assert page(name).title in out
    assert "What never to do\n----------------\n" in out
    assert not {"```", "](", "**"} & {sign for sign in ("```", "](", "**") if sign in out}
    assert max(len(line) for line in out.splitlines() if not line.startswith("    ")) <= 100


def test_case_does_not_matter(capsys):
    assert answered(capsys, "help", "Safety") == answered(capsys, "help", "safety")


def test_machines_get_the_page_as_it_is_written(capsys):
    status, out, _ = answered(capsys, "help", "safety", "--output", "json")
    document = json.loads(out)
    assert (status, document["job"], problems(document)) == (0, "help", [])
    assert document["result"] == {
        "topics": [{"name": "safety", "title": page("safety").title, "exit_statuses": "4"}],
        "text": page("safety").text,
    }
    listed = json.loads(answered(capsys, "help", "--output", "json")[1])
    assert problems(listed) == []
    assert {one["name"]: one["exit_statuses"] for one in listed["result"]["topics"]} == {
        name: kinds().get(name) for name in pages()
    }
    assert listed["result"]["text"] is None


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        (["compact"], ["compact"]),
        (["rewrite-manifests"], ["rewrite_manifests"]),
        (["ref"], ["ref"]),
        (["ref", "list"], ["ref", "list"]),
        (["config", "show"], ["config", "show"]),
        (["help"], ["help"]),
    ],
)
def test_the_help_of_a_command_is_that_of_its_flag(asked, shown, capsys):
    assert answered(capsys, "help", *asked) == answered(capsys, *shown, "--help")
    assert answered(capsys, "help", *asked)[0] == 0


def test_a_kind_of_error_comes_before_a_command_of_its_name(capsys):
    _, out, _ = answered(capsys, "help", "config")
    assert out.startswith("`config`: a key of the configuration is wrong\n")


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("safty", "there is no help on 'safty'; did you mean 'safety'?"),
        ("unavailible", "there is no help on 'unavailible'; did you mean 'unavailable'?"),
        ("left-tags", "there is no help on 'left-tags'; did you mean 'left-tag'?"),
        ("compct", "there is no help on 'compct'; did you mean 'compact'?"),
        ("expire", "there is no help on 'expire'; did you mean 'expire_rows' or 'expire_snapshots'?"),
        (
            "rewrite_data_files",
            "there is no help on 'rewrite_data_files'; `icekeep help compact` is that of the command that does what Iceberg's "
            "procedure 'rewrite_data_files' does",
        ),
        (
            "publish_changes",
            "there is no help on 'publish_changes'; `icekeep help ref publish` is that of the command that does what Iceberg's "
            "procedure 'publish_changes' does",
        ),
        ("zzz", "there is no help on 'zzz'; `icekeep help` lists the topics"),
    ],
)
def test_unknown_topic_is_one_line_with_suggestion(topic, said, capsys):
    status, out, err = answered(capsys, "help", topic)
    assert (status, out, err) == (2, "", f"icekeep: {said}\n")


def test_a_topic_is_known_by_the_function_too():
    assert help_on(topic="left-plan").topics[0].exit_statuses is None
    assert help_on().text is None
