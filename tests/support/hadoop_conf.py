"""Hadoop's configuration, with a change."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from supervisor.adapters.files.hadoop import HadoopSettings


def conf_with(conf_dir: Path, directory: Path, properties: Mapping[str, str]) -> HadoopSettings:
    """A copy of the configuration at `conf_dir` in the new `directory`, in which these properties are set."""
    shutil.copytree(conf_dir, directory)
    site = directory / "hdfs-site.xml"
    text = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in properties.items()
    )
    site.write_text(site.read_text().replace("</configuration>", f"{text}</configuration>"))
    return HadoopSettings(conf_dir=str(directory))
