"""The recipe in docs/deploy/container by reading its files; `tests/interop/test_container_image.py` builds the image."""

import re
from pathlib import Path

import yaml

from icekeep.operations.arguments import parse_command
from icekeep.operations.configuration.file import read_config
from icekeep.operations.loading import open_settings
from kit.cases import for_each

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "docs" / "deploy" / "container"
DOCKERFILE = (RECIPE / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((RECIPE / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
COPIED = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY ")]
SOURCES = [source for sources in COPIED for source in sources]


def test_what_the_image_copies_is_in_the_checkout_and_not_left_out_of_the_build():
    ignored = (RECIPE / "Dockerfile.dockerignore").read_text().splitlines()
    assert "lib" in SOURCES
    for source in SOURCES:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored
    # The directory with the user's configuration is copied, and that is left out: the last line that fits decides.
    assert ignored.index("conf/icekeep.yaml") > ignored.index("!conf")


def test_the_image_has_the_python_that_the_package_needs_and_no_address_of_an_index():
    [version] = re.findall(r"^ARG BASE=python:3\.(\d+)-slim$", DOCKERFILE, re.MULTILINE)
    assert int(version) >= 11
    assert "://" not in DOCKERFILE


def test_the_configuration_is_read_and_its_catalog_opens():
    config = read_config(str(RECIPE / "icekeep.yaml"))
    keys = SERVICES["icekeep"]["environment"]
    catalog = open_settings(config.catalogs["lake"], environ=keys)
    assert catalog.name == "lake"
    assert [policy.name for policy in config.policies] == ["nightly"]


def test_the_configuration_lies_where_the_command_looks_and_its_addresses_are_services():
    [mounted] = [one for one in SERVICES["icekeep"]["volumes"] if one.startswith("./")]
    source, target, mode = mounted.split(":")
    assert (RECIPE / source).is_file()
    assert target == "/home/icekeep/conf/icekeep.yaml"
    assert mode == "ro"
    properties = read_config(str(RECIPE / "icekeep.yaml")).catalogs["lake"].properties
    addresses = [
        properties["uri"],
        properties["s3.endpoint"],
        SERVICES["catalog"]["environment"]["CATALOG_S3_ENDPOINT"],
    ]
    assert {address.partition("//")[2].partition(":")[0] for address in addresses} <= {*SERVICES}


@for_each("name", [*SERVICES])
def test_a_service_is_of_a_fixed_release_and_needs_what_is_there(name):
    service = SERVICES[name]
    assert re.search(r":[A-Za-z0-9.-]*\d", service["image"])
    assert {*service.get("depends_on", {})} <= {*SERVICES}
    named = {volume.partition(":")[0] for volume in service.get("volumes", ()) if not volume.startswith(".")}
    assert named <= {*COMPOSE["volumes"]}


def test_the_build_is_of_this_checkout():
    build = SERVICES["icekeep"]["build"]
    assert (RECIPE / build["context"]).resolve() == ROOT.resolve()
    assert (ROOT / build["dockerfile"]).read_text() == DOCKERFILE


def test_commands_of_the_page_are_ours_and_the_page_says_what_was_not_run():
    page = (RECIPE.parent / "container.md").read_text()
    ours = re.findall(r"^docker (?:compose .* run --rm icekeep|run .*icekeep:[\d.]+) (.+)$", page, re.MULTILINE)
    assert len(ours) == 5
    for command in ours:
        if command != "--version":
            parse_command(command.split(), None, 0)
    assert "What is not tested here is the base" in page
