"""The chart of docs/deploy/schedules by Helm itself: linted, rendered, and its command run with its configuration."""

import json
import os
import re
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


@pytest.mark.deep
def test_helm_finds_nothing_wrong(tmp_path):
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(SHOWN))
    done = helm("lint", "--strict", str(CHART), "--kube-version", OLDEST, "--values", str(tmp_path / "values.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 chart(s) failed" in done.stdout


@pytest.mark.deep
def test_the_chart_with_its_own_values(tmp_path):
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


@pytest.mark.deep
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


@pytest.mark.deep
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


@pytest.mark.deep
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


@pytest.mark.deep
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


RECIPE = "docs/deploy/container/Dockerfile"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
BASE, IMAGE = "localhost/icekeep-base", "localhost/icekeep"


class Buildah:
    """buildah with a store of its own; steps run in a chroot, which needs no rights that a container lacks."""

    def __init__(self, store: Path) -> None:
        self._words = ["buildah", "--root", str(store / "store"), "--runroot", str(store / "run")]
        self._environ = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}

    def __call__(self, *words: str, cwd: Path | None = None) -> str:
        told = subprocess.run(
            [*self._words, *words], capture_output=True, text=True, env=self._environ, cwd=cwd, check=False
        )
        assert told.returncode == 0, f"{words}\n{told.stdout[-4000:]}\n{told.stderr[-4000:]}"
        return told.stdout.strip()


@pytest.fixture(scope="module")
def buildah(tmp_path_factory):
    directory = tmp_path_factory.mktemp("image")
    buildah = Buildah(directory)
    make_base(buildah, directory)
    checkout = directory / "checkout"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", checkout], check=True)
    build = ("build", "--pull-never", "--build-arg", f"BASE={BASE}", "--file", RECIPE, "--tag", IMAGE, ".")
    buildah(*build, cwd=checkout)
    yield buildah
    buildah("rmi", "--all", "--force")


def make_base(buildah, directory):
    packages = "--include=python3,python3-pip,ca-certificates"
    made = ["mmdebstrap", "--quiet", "--variant=minbase", packages, "bookworm", str(directory / "base.tar")]
    subprocess.run(made, check=True)
    base = buildah("from", "scratch")
    buildah("add", "--quiet", base, str(directory / "base.tar"), "/")
    # A Python of Docker's is nobody's but the image's, and named `python`; behind a proxy its certificates are this machine's.
    buildah("copy", "--quiet", base, CERTIFICATES, CERTIFICATES)
    buildah("config", "--env", f"PIP_CERT={CERTIFICATES}", base)
    buildah("run", base, "--", "sh", "-c", "rm /usr/lib/python3*/EXTERNALLY-MANAGED; ln -s python3 /usr/bin/python")
    buildah("commit", "--quiet", "--rm", base, BASE)


@pytest.fixture
def run(buildah):
    """Runs a script of the shell in a container of the image, as its user."""
    container = buildah("from", "--pull-never", IMAGE)
    yield lambda script: buildah("run", container, "--", "sh", "-ec", script)
    buildah("rm", container)


@pytest.mark.nightly
def test_the_image_maintains_tables_as_a_user_without_rights(run):
    assert run("id -un; pwd").split() == ["icekeep", "/home/icekeep"]
    assert re.fullmatch(r"icekeep \d+\.\d+\.\d+", run("icekeep --version"))
    config = "--config playground/icekeep.yaml"
    run("icekeep demo playground > /dev/null")
    told = run(
        f"icekeep compact --table demo.db.small_files {config}; icekeep report --table demo.db.small_files {config}"
    )
    assert "status                      done" in told
    assert "demo.db.small_files" in told


@pytest.mark.nightly
def test_the_image_has_a_spark_that_runs(run):
    # In a chroot no file says where the name of the machine leads.
    environ = "SPARK_LOCAL_HOSTNAME=localhost SPARK_LOCAL_IP=127.0.0.1"
    script = "from icekeep.planning.spark.session import build_session; print(build_session('image').range(7).count())"
    assert run(f'{environ} python -c "{script}"').splitlines()[-1] == "7"


EXAMPLES = ROOT / "docs" / "deploy" / "schedules" / "orchestrators"
PYTHON = ROOT / ".venv-schedulers" / "bin" / "python"
STATUSES = (0, 1, 2, 3, 4, 5, 75)
FAKE = """#!/bin/sh
echo called >>"$0.calls"
while [ "$1" != --result-file ]; do shift; done
echo '{"status": "partial", "result": {"done_jobs_count": 4, "failed_jobs_count": 0}ERROR}' >"$2"
echo 'looking at tables' >&2
exit STATUS
"""
ERROR = ', "error": {"message": "no answer", "help": "icekeep help unavailable"}'


@pytest.fixture(scope="module", params=["dagster", "prefect"])
def seen(request, tmp_path_factory):
    """What became of a run for each exit status, and how often it was begun; and a run of icekeep itself."""
    directory = tmp_path_factory.mktemp("scheduler")
    lake = Lake(directory)
    table = create_table(lake.catalog, ("db", "sick"), SCHEMA)
    for number in range(6):
        table = append(table, [events(number, 4)])
    configuration = {
        "catalogs": {"local": {**lake.properties}},
        "policies": [{"name": "n", "schedule": "@daily", "match": "local.**", "jobs": {"compact": {}}}],
    }
    (directory / "icekeep.yaml").write_text(json.dumps(configuration))
    programs = {}
    for status in STATUSES:
        programs[status] = directory / f"icekeep-{status}"
        error = ERROR if status in (1, 2, 4, 5, 75) else ""
        programs[status].write_text(FAKE.replace("STATUS", str(status)).replace("ERROR", error))
        programs[status].chmod(0o755)
    real = directory / "icekeep"
    real.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}/lib" exec "{BIN}/icekeep" "$@"\n')
    real.chmod(0o755)
    done = subprocess.run(
        [
            str(PYTHON),
            str(ROOT / "tests" / "kit" / "schedulers_probe.py"),
            request.param,
            *map(str, [*programs.values(), real]),
        ],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "DAGSTER_HOME": str(directory),
            "PYTHONPATH": str(EXAMPLES),
            "ICEKEEP_CONFIG": str(directory / "icekeep.yaml"),
            "ICEKEEP_RETRY_SECONDS": "0",
            "DO_NOT_TRACK": "1",
        },
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    calls = {status: len(path.with_name(f"{path.name}.calls").read_text().split()) for status, path in programs.items()}
    return told, {status: told[str(path)] for status, path in programs.items()}, calls, told[str(real)]


@pytest.mark.nightly
def test_only_75_is_tried_again(seen):
    _, by_status, calls, _ = seen
    assert {status for status, told in by_status.items() if told["ok"]} == {0}
    assert calls == {0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 75: 5}


@pytest.mark.nightly
def test_a_failure_says_in_one_line_why(seen):
    _, by_status, _, _ = seen
    assert by_status[4]["message"] == "icekeep ended with exit status 4: no answer (icekeep help unavailable)"
    assert by_status[3]["message"] == "icekeep ended with exit status 3: it is partial"


@pytest.mark.nightly
def test_the_result_is_passed_on(seen):
    _, by_status, _, real = seen
    fake, own = ((one.get("result") or one["figures"]["result"])["result"] for one in (by_status[0], real))
    assert fake["done_jobs_count"] == 4
    assert (own["done_jobs_count"], own["failed_jobs_count"]) == (1, 0)
    if "figures" in real:
        assert real["figures"]["done_jobs_count"] == 1
        assert "failed_jobs_count" not in real["figures"]


@pytest.mark.nightly
def test_dagster_has_the_job_and_its_schedule(seen):
    told = seen[0]
    if "definitions" in told:
        assert told["definitions"] == {"job": "maintain", "cron": "0 2 * * *"}
