"""The same decision without a sidecar: what a helper inside the worker would cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import islice

import numpy as np

from bench.hot_path.exchange import encode_exchanges
from bench.workload import Leg, Workload
from sidecar.decision.decide import decide
from sidecar.model import Query
from sidecar.policy.compiler import compile_policy
from sidecar.policy.schema import Policy
from sidecar.wire.request_codec import decode_query
from worker_client._request import read_request

LEGS = 512


def time_decision(workload: Workload, duration_s: float) -> float:
    """Returns the median microseconds of the decision alone, its query at hand."""
    policy = compile_policy(Policy())
    exchanges = encode_exchanges(islice(workload.legs(), LEGS))
    queries = [decode_query(exchange.question) for exchange in exchanges]
    return _time_each([partial(decide, query, policy) for query in queries], duration_s)


def time_helper(workload: Workload, duration_s: float) -> float:
    """Returns the median microseconds of reading the request and deciding about it."""
    policy = compile_policy(Policy())
    legs = list(islice(workload.legs(), LEGS))
    queries = [decode_query(exchange.question) for exchange in encode_exchanges(legs)]

    def help_with(leg: Leg, query: Query) -> object:
        read_request(leg.request, leg.context, phase=leg.phase, headers=leg.headers)
        return decide(query, policy)

    return _time_each([partial(help_with, *pair) for pair in zip(legs, queries, strict=True)], duration_s)


def _time_each(calls: list[Callable[[], object]], duration_s: float) -> float:
    taken: list[float] = []
    deadline = time.perf_counter() + duration_s
    while time.perf_counter() < deadline:
        for call in calls:
            began = time.perf_counter()
            call()
            taken.append(time.perf_counter() - began)
    return float(np.median(taken)) * 1e6
