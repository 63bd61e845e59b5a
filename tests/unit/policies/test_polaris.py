import json

from hypothesis import given
from hypothesis import strategies as st

from icekeep.catalog.base import StoredPolicy
from icekeep.operations.configuration.layers import layer_of_settings
from icekeep.policies.polaris import settings_of_polaris
from icekeep.policies.table_properties import OWNERS_SETTINGS
from icekeep.policies.values import LayerKind
from kit.cases import cases, for_each

TYPES = {
    "system.data-compaction": "compact",
    "system.metadata-compaction": "rewrite_manifests",
    "system.snapshot-expiry": "expire_snapshots",
    "system.orphan-file-removal": "remove_orphan_files",
}


def stored(kind: str, content: object, **others: object) -> StoredPolicy:
    return StoredPolicy(f"system.{kind}", "p", content if isinstance(content, str) else json.dumps(content), **others)


def said(policy: StoredPolicy) -> dict[str, str]:
    return {one.key: one.text for one in settings_of_polaris([policy]).settings}


# As in the schemas of Polaris, and in its documentation.
EXAMPLES = [
    (
        "data-compaction",
        {
            "version": "2025-02-03",
            "enable": True,
            "target_file_size_bytes": 134217728,
            "config": {"compaction_strategy": "bin-pack"},
        },
        {"enabled": "true", "options.target-file-size-bytes": "134217728", "strategy": "binpack"},
    ),
    (
        "data-compaction",
        {"enable": True, "config": {"target_file_size_bytes": 5, "max-concurrent-file-group-rewrites": 5}},
        {"enabled": "true", "options.target-file-size-bytes": "5", "options.max-concurrent-file-group-rewrites": "5"},
    ),
    ("metadata-compaction", {"enable": False, "config": {"spec_id": 1}}, {"enabled": "false", "spec_id": "1"}),
    (
        "snapshot-expiry",
        {"enable": True, "config": {"min_snapshot_to_keep": 1, "max_snapshot_age_days": 2}},
        {"enabled": "true", "retain_last": "1", "older_than": "2d"},
    ),
    (
        "orphan-file-removal",
        {"enable": True, "max_orphan_file_age_in_days": 30},
        {"enabled": "true", "older_than": "30d"},
    ),
    (
        "orphan-file-removal",
        {"enable": True, "older_than": 1707315296},
        {"enabled": "true", "older_than": "2024-02-07T14:14:56Z"},
    ),
]


@for_each(("kind", "content", "expected"), EXAMPLES)
def test_each_type_says_what_its_job_is_told(kind, content, expected):
    heard = settings_of_polaris([stored(kind, content)])
    assert {one.key: one.text for one in heard.settings} == expected
    assert {one.job for one in heard.settings} == {TYPES[f"system.{kind}"]}
    assert heard.problems == ()
    layer, problems = layer_of_settings(heard, LayerKind.STORED)
    assert (problems, layer.doubtful_jobs) == ((), frozenset())
    assert layer.jobs[TYPES[f"system.{kind}"]].keys() == expected.keys()


def test_a_policy_says_that_it_is_inherited():
    (one,) = settings_of_polaris([stored("data-compaction", {"enable": True}, is_inherited=True)]).settings
    assert one.source == "stored policy 'p' (inherited)"


def test_free_keys_that_are_not_known_are_told_and_passed_over():
    heard = settings_of_polaris(
        [
            stored("data-compaction", {"enable": True, "config": {"my-key": "my-value"}}),
            stored(
                "orphan-file-removal", {"enable": True, "locations": ["s3://b/t"], "config": {"location": "s3://b/u"}}
            ),
            StoredPolicy("custom.acme.masking", "m", "select 1"),
        ]
    )
    assert [(one.job, one.problem, one.holds) for one in heard.problems] == [
        ("compact", "'my-key' is not taken", False),
        ("remove_orphan_files", "'location' is not taken", False),
        ("remove_orphan_files", "'locations' is not taken", False),
        (None, "type 'custom.acme.masking' is none of a job's", False),
    ]
    layer, _ = layer_of_settings(heard, LayerKind.STORED)
    assert (layer.is_doubtful, layer.doubtful_jobs) == (False, frozenset())


@for_each(
    ("content", "problem"),
    [
        ("{", "its content is no JSON"),
        ("", "its content is no JSON"),
        ([], "does not say `enable`"),
        ({"enable": "yes"}, "does not say `enable`"),
        ({"enable": True, "version": "2031-01-01"}, "is of version '2031-01-01'; only 2025-02-03 is known"),
        ({"enable": True, "config": 5}, "its `config` is no object"),
        ({"enable": True, "config": {"max_snapshot_age_days": "soon"}}, "'max_snapshot_age_days' has a value"),
        ({"enable": True, "config": {"max_snapshot_age_days": 1.5}}, "'max_snapshot_age_days' has a value"),
        ({"enable": True, "config": {"max_snapshot_age_days": -1}}, "'max_snapshot_age_days' has a value"),
        ({"enable": True, "config": {"max_snapshot_age_days": True}}, "'max_snapshot_age_days' has a value"),
        ({"enable": True, "config": {"min_snapshot_to_keep": None}}, "'min_snapshot_to_keep' has a value"),
        ('{"enable": true, "config": {"max_snapshot_age_days": Infinity}}', "'max_snapshot_age_days' has a value"),
        ("[" * 100_000, "its content is no JSON"),
        ('{"enable": true, "enable": false}', "its content says 'enable' twice"),
        ('{"enable": true, "config": {"x": 1, "x": 2}}', "its content says 'x' twice"),
        ({"enable": True, "Enable": False}, "'Enable' is not taken"),
        ({"enable": True, "config": {"enabled": False}}, "'enabled' is not taken"),
        ({"enable": True, "config": {"max_snapshot_age_days": "1_0"}}, "'max_snapshot_age_days' has a value"),
        ({"enable": True, "config": {"max_snapshot_age_days": "\u0667"}}, "'max_snapshot_age_days' has a value"),
        (
            {"enable": True, "max_snapshot_age_days": 3, "config": {"max_snapshot_age_days": 30}},
            "'max_snapshot_age_days' contradicts another key: both say older_than",
        ),
        ({"enable": True, "config": {"min_snapshot_to_keep": 0}}, "'0' is not a whole number of 1 or more"),
    ],
)
def test_one_that_cannot_be_read_holds_its_job(content, problem):
    layer, problems = layer_of_settings(settings_of_polaris([stored("snapshot-expiry", content)]), LayerKind.STORED)
    assert [problem in one.problem for one in problems] == [True]
    assert (layer.is_doubtful, layer.doubtful_jobs) == (False, {"expire_snapshots"})


def test_of_two_of_one_type_none_is_taken_for_the_one_that_holds():
    both = [stored("data-compaction", {"enable": False}), stored("data-compaction", {"enable": True})]
    for some in (both, both[::-1]):
        layer, problems = layer_of_settings(settings_of_polaris(some), LayerKind.STORED)
        assert layer.doubtful_jobs == {"compact"}
        assert [one.problem for one in problems] == [
            "is a second one of type 'system.data-compaction'; only one can hold"
        ]


def test_keys_that_say_the_same_are_no_contradiction():
    policy = stored(
        "snapshot-expiry", {"enable": True, "max_snapshot_age_days": 3, "config": {"max_snapshot_age_days": "3"}}
    )
    assert layer_of_settings(settings_of_polaris([policy]), LayerKind.STORED)[1] == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(st.text(max_size=3), below, max_size=2),
    max_leaves=3,
)
KNOWN = st.sampled_from(
    [
        "target_file_size_bytes",
        "compaction_strategy",
        "spec_id",
        "min_snapshot_to_keep",
        "max_snapshot_age_days",
        "older_than",
        "max_orphan_file_age_in_days",
        "location",
        "force",
        "prefix_mismatch_mode",
    ]
)


@cases(300)
@given(
    kind=st.sampled_from(sorted(TYPES)),
    enable=JSON,
    own=st.dictionaries(KNOWN, JSON, max_size=3),
    config=st.dictionaries(KNOWN, JSON, max_size=3),
)
def test_any_stored_policy_is_read_or_reported_within_limits(kind, enable, own, config):
    policy = StoredPolicy(kind, "p", json.dumps({**own, "config": config, "enable": enable}))
    layer, problems = layer_of_settings(settings_of_polaris([policy]), LayerKind.STORED)
    job = TYPES[kind]
    assert {*layer.jobs} <= {job}
    names = {key.partition(".")[0] for key in layer.of_job(job)}
    assert names <= OWNERS_SETTINGS[job] | {"enabled"}
    assert isinstance(enable, bool) or layer.doubtful_jobs == {job}
    assert len(layer.of_job(job)) + len(problems) >= 1
