"""The library in a TensorRT-LLM worker: asks the sidecar about each request and builds engine parameters.

Begin with `RoutingHintClient.from_env` and `EngineProfile.lazy`. `worker_client.testing` has what a worker's
own tests need. Nothing here imports the sidecar.
"""

from routing_hints.errors import ConfigurationError, ConfigurationProblem, RoutingHintsError
from routing_hints.vocabulary import (
    AdpRouter,
    EngineDialect,
    FinishOutcome,
    IdentitySource,
    Phase,
    PlacementState,
    RankDirective,
    RankSource,
    RequestKind,
)
from worker_client._client import RoutingHintClient
from worker_client._config import Affinity, ClientConfig
from worker_client._engine import EngineProfile, EngineSource
from worker_client._engine_types import EngineTypes
from worker_client._model import Decision, Origin
from worker_client._plan import PendingPlan, Plan

__all__ = [
    "AdpRouter",
    "Affinity",
    "ClientConfig",
    "ConfigurationError",
    "ConfigurationProblem",
    "Decision",
    "EngineDialect",
    "EngineProfile",
    "EngineSource",
    "EngineTypes",
    "FinishOutcome",
    "IdentitySource",
    "Origin",
    "PendingPlan",
    "Phase",
    "PlacementState",
    "Plan",
    "RankDirective",
    "RankSource",
    "RequestKind",
    "RoutingHintClient",
    "RoutingHintsError",
]
