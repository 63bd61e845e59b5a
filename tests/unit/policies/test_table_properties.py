from icekeep.operations.jobs import JOBS, POLICY_JOBS
from icekeep.policies.table_properties import OWNERS_SETTINGS, OutsideSetting, settings_of_properties
from icekeep.settings import SettingKind
from kit.cases import for_each


def test_properties_say_keys_of_jobs_and_of_all():
    heard = settings_of_properties(
        {
            "write.format.default": "orc",
            "icekeep.order": "id ASC",
            "icekeep.enabled": "false",
            "icekeep.mode": "observe",
            "icekeep.compact.options.min-input-files": "9",
            "icekeep.compact.where": "day > 5",
            "icekeep.check.when.age_over": "7d",
        }
    )
    assert [(one.job, one.key, one.text) for one in heard.settings] == [
        ("check", "when.age_over", "7d"),
        ("compact", "options.min-input-files", "9"),
        ("compact", "where", "day > 5"),
        (None, "enabled", "false"),
        (None, "mode", "observe"),
    ]
    assert heard.settings[0] == OutsideSetting(
        "check", "when.age_over", "7d", "table property icekeep.check.when.age_over"
    )
    assert heard.problems == ()


@for_each(
    ("name", "text", "job", "problem"),
    [
        ("icekeep.enabeld", "false", None, "there is no such property; there is icekeep.enabled"),
        ("icekeep.compakt.enabled", "false", None, "there is no such property"),
        ("icekeep.compact", "false", "compact", "'' cannot be set here"),
        (
            "icekeep.compact.wher",
            "x",
            "compact",
            "'wher' cannot be set here, only in the configuration file; there is branch",
        ),
        ("icekeep.mode", "run", None, "only `observe` can be set here"),
        ("icekeep.drop.purge", "true", None, "there is no such property"),
    ],
)
def test_what_is_not_known_holds_its_job_or_all_of_them(name, text, job, problem):
    (found,) = settings_of_properties({name: text}).problems
    assert (found.job, found.source, found.holds) == (job, f"table property {name}", True)
    assert problem in found.problem


@for_each("name", ["ICEKEEP.enabled", "Icekeep.compact.enabled", " icekeep.enabled", "icekeep.Enabled"])
def test_a_property_that_is_spelled_otherwise_holds_all_jobs(name):
    """It may be an owner's wish to be left alone."""
    (found,) = settings_of_properties({name: "false", "icekeeper.team": "a", "my.icekeep.enabled": "x"}).problems
    assert (found.job, found.source, found.holds) == (None, f"table property {name}", True)


@for_each(
    ("job", "key"),
    [
        ("remove_orphan_files", key)
        for key in (
            "location",
            "force",
            "file_list_view",
            "equal_schemes",
            "options",
            "trash",
            "accept_unreadable",
            "approve",
        )
    ]
    + [("expire_snapshots", key) for key in ("options", "trash", "snapshot_ids", "trust_manifest_list", "approve")],
)
def test_table_properties_cannot_move_deletions_or_drop_guards(job, key):
    assert any(setting.name == key for setting in JOBS[job].settings)
    heard = settings_of_properties({f"icekeep.{job}.{key}": "true"})
    assert (heard.settings, len(heard.problems)) == ((), 1)


def test_owners_set_only_what_the_jobs_of_policies_have():
    assert {*OWNERS_SETTINGS} == {*POLICY_JOBS}
    for job, names in OWNERS_SETTINGS.items():
        assert names <= {setting.name for setting in JOBS[job].settings if setting.kind is not SettingKind.PAIRS}
