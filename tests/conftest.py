"""What every test may use; the sidecar's fixtures only where the sidecar's libraries are installed."""

import importlib.util

_OF_THE_SIDECAR = ["tests.support.sidecar", "tests.support.command"]

pytest_plugins = _OF_THE_SIDECAR if importlib.util.find_spec("pydantic") else []
