"""The command `python -m worker_client doctor`; run it inside a worker's image."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from routing_hints.errors import ConfigurationError, ConfigurationProblem
from routing_hints.vocabulary import Phase
from worker_client._config import ClientConfig
from worker_client._doctor import Diagnosis, diagnose

_EPILOG = "Exit code: 0 affinity can act in this phase; 1 it can't, or no sidecar responds; 2 bad settings."


def main(argv: list[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m worker_client")
    commands = parser.add_subparsers(required=True)
    doctor = commands.add_parser(
        "doctor", help="diagnose whether affinity can act in a phase, and what to change", epilog=_EPILOG
    )
    doctor.add_argument("--phase", choices=("prefill", "decode", "aggregated"), required=True)
    doctor.add_argument(
        "--engine-args",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="arguments of the engine's LLM, as Dynamo's --extra-engine-args; later files win",
    )
    doctor.add_argument("--tensor-parallel-size", type=int, help="same as the worker's option")
    doctor.add_argument("--enable-attention-dp", action="store_true", help="same as the worker's option")
    args = parser.parse_args(argv)
    try:
        config = ClientConfig.from_env()
        engine_args = _read_engine_args(args)
    except ConfigurationError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return 2
    diagnosis = asyncio.run(diagnose(config, engine_args, Phase[args.phase.upper()], os.environ))
    _print(diagnosis)
    return 0 if diagnosis.can_act else 1


def _read_engine_args(args: argparse.Namespace) -> dict[str, Any] | None:
    """Returns the engine's arguments, None if none were given.

    Raises:
        ConfigurationError: a file can't be read or holds no mapping.
    """
    merged: dict[str, Any] = {}
    for path in args.engine_args:
        merged.update(_read_mapping(path))
    if args.tensor_parallel_size is not None:
        merged["tensor_parallel_size"] = args.tensor_parallel_size
    if args.enable_attention_dp:
        merged["enable_attention_dp"] = True
    if not merged and not args.engine_args:
        return None
    # TensorRT-LLM's defaults, so that an absent argument does not count as unknown.
    return {"enable_attention_dp": False, "tensor_parallel_size": 1, **merged}


def _read_mapping(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text()
        try:
            yaml: Any = importlib.import_module("yaml")
        except ImportError:  # the base install has no YAML; an engine's image has
            content = json.loads(text)
        else:
            content = yaml.safe_load(text)
    except Exception as error:
        raise ConfigurationError([ConfigurationProblem(str(path), str(error))]) from error
    if not isinstance(content or {}, dict):
        raise ConfigurationError([ConfigurationProblem(str(path), "is not a mapping")])
    return content or {}


def _print(diagnosis: Diagnosis) -> None:
    for name, value in diagnosis.facts:
        print(f"{name:26}{value}")
    for finding in diagnosis.findings:
        print(f"\n- {finding.problem}\n  change: {finding.change}")
    print(f"\naffinity can act: {'yes' if diagnosis.can_act else 'no'}")


if __name__ == "__main__":
    sys.exit(main())
