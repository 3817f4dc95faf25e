"""What every test may use; the sidecar's fixtures only where the sidecar's libraries are installed."""

import importlib.util

pytest_plugins = ["tests.fixtures.sidecar"] if importlib.util.find_spec("pydantic") else []
