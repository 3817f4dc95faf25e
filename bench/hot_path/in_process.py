"""The same decision without a sidecar: what a helper inside the worker would cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import islice

import numpy as np

from bench.decoding import decode_whole_request
from bench.hot_path.exchange import encode_exchanges
from bench.workload import EngineRequest, Workload
from sidecar.decision.decide import decide
from sidecar.model import Request
from sidecar.policy.compiler import compile_policy
from sidecar.policy.schema import Policy
from worker_client._request import read_request

_SAMPLES = 512


def time_decision(workload: Workload, duration_s: float) -> float:
    """Returns the median microseconds of the decision alone, its decoded request at hand."""
    policy = compile_policy(Policy())
    exchanges = encode_exchanges(islice(workload.requests(), _SAMPLES))
    requests = [decode_whole_request(exchange.standalone) for exchange in exchanges]
    return _time_each([partial(decide, request, policy) for request in requests], duration_s)


def time_helper(workload: Workload, duration_s: float) -> float:
    """Returns the median microseconds of reading the request and deciding about it."""
    policy = compile_policy(Policy())
    engine_requests = list(islice(workload.requests(), _SAMPLES))
    requests = [decode_whole_request(exchange.standalone) for exchange in encode_exchanges(engine_requests)]

    def help_with(engine_request: EngineRequest, request: Request) -> object:
        read_request(
            engine_request.request,
            engine_request.context,
            phase=engine_request.phase,
            headers=engine_request.headers,
        )
        return decide(request, policy)

    return _time_each(
        [partial(help_with, *pair) for pair in zip(engine_requests, requests, strict=True)], duration_s
    )


def _time_each(calls: list[Callable[[], object]], duration_s: float) -> float:
    taken: list[float] = []
    deadline = time.perf_counter() + duration_s
    while time.perf_counter() < deadline:
        for call in calls:
            began = time.perf_counter()
            call()
            taken.append(time.perf_counter() - began)
    return float(np.median(taken)) * 1e6
