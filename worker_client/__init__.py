"""The library in a TensorRT-LLM worker: asks the sidecar about each request and builds engine parameters.

Begin with `RoutingHintClient.from_env` and `EngineProfile.lazy`. `worker_client.testing` has what a worker's
own tests need. Nothing here imports the sidecar.
"""

from worker_client._client import RoutingHintClient
from worker_client._config import Affinity, ClientConfig
from worker_client._engine import EngineProfile, EngineSource, EngineTypes
from worker_client._errors import ConfigurationError, RoutingHintsError
from worker_client._model import (
    AdpRouter,
    Answer,
    Decision,
    EngineDialect,
    FinishOutcome,
    IdentitySource,
    Origin,
    Phase,
    RankDirective,
    RankSource,
    RequestKind,
)
from worker_client._pending_plan import PendingPlan
from worker_client._plan import Plan

__all__ = [
    "AdpRouter",
    "Affinity",
    "Answer",
    "ClientConfig",
    "ConfigurationError",
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
    "Plan",
    "RankDirective",
    "RankSource",
    "RequestKind",
    "RoutingHintClient",
    "RoutingHintsError",
]
