"""The chart of docs/deploy/schedules by Helm itself: linted, rendered, and its command run with its configuration."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from icekeep.errors import ConflictError, OutcomeUnknownError, SafetyError, TryAgainError, UsageError
from icekeep.operations.configuration.file import parse_config
from icekeep.tables.verbs import append, create_table
from kit.lake import SCHEMA, Lake, events
from kit.pages import blocks
from kit.shell import BIN, ROOT

OLDEST = "1.31"
"""The release of Kubernetes that charts are made for."""

HELM = ROOT / ".helm-env" / "helm"


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    """What Helm says to a command."""
    return subprocess.run([str(HELM), *words], capture_output=True, text=True, timeout=120, check=False)


def rendered(chart: Path, directory: Path, **values: Any) -> Mapping[str, Any]:
    """What a chart makes, by kind, with these values in place of its own; raises `ValueError` where it makes nothing."""
    given = directory / "values.json"
    given.write_text(json.dumps(values))
    done = helm("template", "night", str(chart), "--kube-version", OLDEST, "--values", str(given))
    if done.returncode:
        raise ValueError(done.stderr)
    return {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one}


pytestmark = pytest.mark.deep

[SHOWN] = [
    values
    for block in blocks(ROOT / "docs" / "schedules.md")
    if block.language == "yaml" and "image" in (values := yaml.safe_load(block.text))
]
"""The values that the page shows."""
CHART = ROOT / "docs" / "deploy" / "schedules" / "helm" / "icekeep"


def pod_of(objects):
    return objects["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def container_of(objects):
    [container] = pod_of(objects)["containers"]
    return container


def test_helm_finds_nothing_wrong(tmp_path):
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(SHOWN))
    done = helm("lint", "--strict", str(CHART), "--kube-version", OLDEST, "--values", str(tmp_path / "values.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 chart(s) failed" in done.stdout


def test_with_its_own_values_it_makes_a_job_that_runs_once_at_a_time_and_owns_nothing_of_the_node(tmp_path):
    objects = rendered(CHART, tmp_path, configuration=SHOWN["configuration"])
    assert {*objects} == {"ConfigMap", "CronJob", "ServiceAccount"}
    spec = objects["CronJob"]["spec"]
    assert (spec["schedule"], spec["timeZone"], spec["concurrencyPolicy"]) == ("0 2 * * *", "Etc/UTC", "Forbid")
    pod, container = pod_of(objects), container_of(objects)
    assert pod["restartPolicy"] == "Never"
    assert pod["automountServiceAccountToken"] is False
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 1000)
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    # What is written goes to the one volume that is not read-only.
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"] if not one.get("readOnly")}
    assert mounts == {"/scratch": "scratch", "/tmp": "scratch"}
    homes = {one["name"]: one["value"] for one in container["env"]}
    assert {homes["HOME"], homes["TMPDIR"], container["workingDir"]} == {"/scratch"}
    minutes = int(container["args"][container["args"].index("--max-minutes") + 1])
    assert spec["jobTemplate"]["spec"]["activeDeadlineSeconds"] >= (minutes + 30) * 60


def test_only_what_may_get_better_is_tried_again(tmp_path):
    spec = rendered(CHART, tmp_path, **{**SHOWN, "retries": 2})["CronJob"]["spec"]["jobTemplate"]["spec"]
    assert spec["backoffLimit"] == 2
    disrupted, failed = spec["podFailurePolicy"]["rules"]
    assert disrupted["action"] == "Ignore"
    codes = failed["onExitCodes"]
    assert (failed["action"], codes["operator"], codes["containerName"]) == ("FailJob", "NotIn", "icekeep")
    assert {TryAgainError.exit_status, ConflictError.exit_status} <= {*codes["values"]}
    assert not {1, 3, UsageError.exit_status, SafetyError.exit_status, OutcomeUnknownError.exit_status} & {
        *codes["values"]
    }


def test_values_reach_what_they_are_for(tmp_path):
    objects = rendered(
        CHART,
        tmp_path,
        configuration=SHOWN["configuration"],
        schedule="30 1 * * 6",
        policy="weekly",
        extraArgs=["--match", "lake.**"],
        secrets=["catalog-login"],
        imagePullSecrets=["registry"],
        image={"repository": "r.example.com/x", "tag": "1.2"},
        serviceAccount={"create": False, "name": "given"},
        resources={"limits": {"memory": "1Gi"}},
        nodeSelector={"pool": "batch"},
        tolerations=[{"key": "spot", "operator": "Exists"}],
        extraEnv=[{"name": "AWS_REGION", "value": "eu-central-1"}],
    )
    assert "ServiceAccount" not in objects
    pod, container = pod_of(objects), container_of(objects)
    assert objects["CronJob"]["spec"]["schedule"] == "30 1 * * 6"
    assert container["args"][-4:] == ["--policy", "weekly", "--match", "lake.**"]
    assert container["envFrom"] == [{"secretRef": {"name": "catalog-login"}}]
    assert container["image"] == "r.example.com/x:1.2"
    assert container["resources"]["limits"] == {"memory": "1Gi"}
    assert container["env"][-1] == {"name": "AWS_REGION", "value": "eu-central-1"}
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["serviceAccountName"] == "given"
    assert pod["nodeSelector"] == {"pool": "batch"}
    assert pod["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    with pytest.raises(ValueError, match="give the catalogs and policies"):
        rendered(CHART, tmp_path)


def test_the_configuration_is_that_of_the_values_and_no_more(tmp_path):
    objects = rendered(CHART, tmp_path, **SHOWN)
    config = parse_config(objects["ConfigMap"]["data"]["icekeep.yaml"])
    assert [policy.name for policy in config.policies] == ["nightly"]
    assert {*config.catalogs} == {"lake"}
    assert config.catalogs["lake"].properties["token"] == "${CATALOG_TOKEN}"
    assert container_of(objects)["envFrom"] == [{"secretRef": {"name": "catalog-login"}}]
    assert objects["CronJob"]["spec"]["timeZone"] == "Europe/Berlin"
    # Helm reads numbers as floating point, and must not write a size as 1.34217728e+08.
    policies = [
        {
            "name": "p",
            "schedule": None,
            "match": "a.**",
            "jobs": {"compact": {"options": {"target-file-size-bytes": 134217728}}},
        }
    ]
    text = rendered(CHART, tmp_path, configuration={"policies": policies})["ConfigMap"]["data"]["icekeep.yaml"]
    assert yaml.safe_load(text)["policies"] == policies
    assert "134217728" in text


def test_its_command_with_its_environment_looks_at_a_lake(tmp_path: Path):
    lake = Lake(tmp_path)
    table = create_table(lake.catalog, ("db", "sick"), SCHEMA)
    for number in range(6):
        table = append(table, [events(number, 4)])
    configuration = {
        "catalogs": {"local": {**lake.properties}},
        "policies": [{"name": "n", "schedule": "@daily", "match": "local.**", "jobs": {"compact": None}}],
    }
    objects = rendered(CHART, tmp_path, configuration=configuration)
    container = container_of(objects)
    given = {one["name"]: one["value"] for one in container["env"]}
    path = tmp_path / "icekeep.yaml"
    path.write_text(objects["ConfigMap"]["data"]["icekeep.yaml"])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {name: str(scratch) if value == "/scratch" else value for name, value in given.items()}
    done = subprocess.run(
        [str(BIN / "icekeep"), *container["args"], "--dry-run"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}/lib", **environment, "ICEKEEP_CONFIG": str(path)},
        cwd=scratch,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "local.db.sick" in done.stdout
