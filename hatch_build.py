"""Generates the package `routing_hints.v1` from `proto/` while the distribution is built.

The compiler is the oldest one whose output the supported runtimes accept: grpcio-tools 1.62.3
emits protobuf gencode 4.25.1, which runs on protobuf 4.25 to 7 and grpcio 1.62 and newer. A newer
compiler would raise the floor of every worker image. Source: docs/compatibility.md.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GRPCIO_TOOLS = "grpcio-tools==1.62.3"
NEWEST_COMPILER_PYTHON = (3, 12)


class GenerateContract(BuildHookInterface):  # type: ignore[type-arg]
    """Generates the contract's modules into the source tree and adds them to what is built."""

    PLUGIN_NAME = "custom"

    @property
    def _generated(self) -> Path:
        return Path(self.root) / "routing_hints" / "v1"

    @property
    def _is_sdist(self) -> bool:
        return (Path(self.root) / "PKG-INFO").is_file()

    def dependencies(self) -> list[str]:
        """Returns the compiler's requirement, or nothing where an sdist brings its output.

        Raises:
            RuntimeError: this Python has no wheel of that compiler.
        """
        if self._is_sdist:
            return []
        if sys.version_info[:2] > NEWEST_COMPILER_PYTHON:
            raise RuntimeError(
                "a checkout of routing-hint-sidecar builds on Python 3.10 to 3.12 only, because "
                f"{GRPCIO_TOOLS} has no wheel for Python {sys.version_info[0]}.{sys.version_info[1]}; "
                "build the wheel there (`make wheel`) and install that wheel here: it runs on every "
                "Python from 3.10 on"
            )
        return [GRPCIO_TOOLS]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generates the modules, unless this is an sdist, which brings them."""
        if not self._is_sdist:
            self._generate()
        # Ignored by git, so hatchling would leave them out.
        build_data["artifacts"].append("/routing_hints/v1/")

    def _generate(self) -> None:
        shutil.rmtree(self._generated, ignore_errors=True)
        self._generated.mkdir()
        protos = sorted((Path(self.root) / "proto").rglob("*.proto"))
        if not protos:
            raise RuntimeError("no .proto files below proto/")
        outputs = [f"--{kind}_out={self.root}" for kind in ("python", "pyi", "grpc_python")]
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{Path(self.root) / 'proto'}"]
        subprocess.run([*command, *outputs, *map(str, protos)], check=True)  # noqa: S603  our own files
        (self._generated / "__init__.py").write_text(
            '"""Version 1 of the contract, generated from proto/."""\n'
        )
