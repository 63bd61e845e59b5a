"""Helm, as `make helm-env` builds it."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kit.shell import ROOT

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
