from icekeep.operations.commands.config_show import show_config
from icekeep.operations.configuration.file import parse_config
from icekeep.secrets import MASK


def test_properties_show_sources_and_policies_their_jobs():
    config = parse_config(
        "catalogs: {c: {uri: u, type: sql}}\n"
        "policies: [{name: n, schedule: null, tables: [c.d.t], match: c.**, except: c.e.*, "
        "jobs: {expire_snapshots: , compact: }}]",
        "my.yaml",
    )
    shown = show_config(config, config.catalogs.values(), {})
    assert [(p.catalog, p.key, p.value, p.source) for p in shown.properties] == [
        ("c", "type", "sql", "my.yaml, line 1"),
        ("c", "uri", "u", "my.yaml, line 1"),
    ]
    assert [(p.policy, p.jobs) for p in shown.policies] == [("n", ("compact", "expire_snapshots"))]
    assert [(p.tables, p.match, p.excepted) for p in shown.policies] == [(("c.d.t",), ("c.**",), ("c.e.*",))]


def test_all_settings_are_shown_with_sources_and_no_secret():
    config = parse_config(
        """
catalogs: {c: {type: sql, uri: 'sqlite:///x.db', warehouse: /data/wh}, far: {type: hive, warehouse: 's3://b/wh'}}
prices: {core_hour: 0.05}
metrics: {pushgateway: 'https://me:s3cret@push', labels: {env: prod}}
runs: {keep: 90d}
defaults: {schedule: null, window: {days: [mon, tue]}}
tables: {c.d.t: {enabled: false}}
""",
        "my.yaml",
    )
    shown = show_config(config, config.catalogs.values(), {})
    assert [(one.key, one.value, one.source) for one in shown.values] == [
        ("prices.core_hour", "0.05", "my.yaml, line 3"),
        ("metrics.pushgateway", f"https://me:{MASK}@push", "my.yaml, line 4"),
        ("metrics.labels.env", "prod", "my.yaml, line 4"),
        ("runs.keep", "90d", "my.yaml, line 5"),
        ("defaults.schedule", "null", "my.yaml, line 6"),
        ("defaults.window.days[0]", "mon", "my.yaml, line 6"),
        ("defaults.window.days[1]", "tue", "my.yaml, line 6"),
        ("tables.c.d.t.enabled", "false", "my.yaml, line 7"),
        ("log.format", "text", "default"),
        ("runs.enabled", "true", "default"),
        ("runs.uri", "sqlite:////data/wh.icekeep-runs.db", "default for catalog c"),
        ("runs.uri", "nothing is written down", "default for catalog far"),
    ]


def test_an_address_of_the_file_takes_the_place_of_the_defaults():
    config = parse_config(
        "catalogs: {c: {type: sql, warehouse: /wh}}\nruns: {uri: 'postgresql://me:pw@h/d'}", "my.yaml"
    )
    shown = show_config(config, config.catalogs.values(), {})
    assert [one.value for one in shown.values if one.key == "runs.uri"] == [f"postgresql://me:{MASK}@h/d"]
