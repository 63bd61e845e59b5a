"""The image of docs/deploy/container, built and run by buildah, without a daemon and without a registry.

Its base is a Debian with a Python of its own, made by mmdebstrap, in the place of the image that Docker's registry has under the
name in the Dockerfile: so the steps of the Dockerfile are run, and not that base.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPE = "docs/deploy/container/Dockerfile"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
BASE, IMAGE = "localhost/icekeep-base", "localhost/icekeep"

pytestmark = pytest.mark.nightly


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


def test_the_image_has_a_spark_that_runs(run):
    # In a chroot no file says where the name of the machine leads.
    environ = "SPARK_LOCAL_HOSTNAME=localhost SPARK_LOCAL_IP=127.0.0.1"
    script = "from icekeep.planning.spark.session import build_session; print(build_session('image').range(7).count())"
    assert run(f'{environ} python -c "{script}"').splitlines()[-1] == "7"
