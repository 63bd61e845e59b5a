"""Spark's configuration as it stands before Spark runs: `spark-defaults.conf` and what `PYSPARK_SUBMIT_ARGS` adds.

Reading it here costs nothing; asking Spark costs the start of a JVM. Under `spark-submit` the JVM runs already and
`session.py` asks it instead.
"""

import itertools
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from icekeep.planning.spark.lazily import running_context

SUBMITTED_VARIABLE = "PYSPARK_GATEWAY_PORT"
"""An environment variable that `spark-submit` sets: a JVM runs already and knows the configuration."""

_LINE = re.compile(r"(\S+?)(?:\s*[=:]\s*|\s+)(.*)")


def configured_properties(environ: Mapping[str, str]) -> dict[str, str]:
    """The `spark.*` properties that a session started from this environment would have."""
    arguments = _submit_arguments(environ)
    chosen = [value for flag, value in arguments if flag == "--properties-file"]
    properties: dict[str, str] = {}
    for path in chosen[-1:] or _default_files(environ):
        properties |= _read_properties(Path(path))
    for flag, value in arguments:
        key, equals, text = value.partition("=")
        if flag in ("--conf", "-c") and equals:
            properties[key.strip()] = text
        if flag == "--master":
            properties["spark.master"] = value
    return properties


def current_properties(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of the session that runs in this process, which knows best; where none runs, of one that would be started."""
    context = running_context()
    return configured_properties(environ) if context is None else dict(context.getConf().getAll())


def has_local_master(properties: Mapping[str, str]) -> bool:
    """Whether a session of these properties has its tasks on this machine, as one that is configured nowhere has."""
    return properties.get("spark.master", "local").startswith("local")


def _submit_arguments(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Pairs of a flag and the word after it, `--flag=word` included."""
    try:
        words = shlex.split(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    except ValueError:
        # Spark itself will refuse it when it starts.
        return []
    pairs = list(itertools.pairwise([*words, ""]))
    joined = [word.partition("=") for word in words if word.startswith("--") and "=" in word]
    return pairs + [(flag, value) for flag, _, value in joined]


def _default_files(environ: Mapping[str, str]) -> list[str]:
    directory = environ.get("SPARK_CONF_DIR") or (environ.get("SPARK_HOME") and f"{environ['SPARK_HOME']}/conf")
    return [f"{directory}/spark-defaults.conf"] if directory else []


def _read_properties(path: Path) -> dict[str, str]:
    """A Java properties file, as far as Spark's users write it: a key, then whitespace, `=` or `:`, then the value."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    matches = [_LINE.fullmatch(line.strip()) for line in lines if not line.lstrip().startswith(("#", "!"))]
    return {match[1]: match[2].strip() for match in matches if match and match[1].startswith("spark.")}
