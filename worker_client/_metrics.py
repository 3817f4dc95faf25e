"""Every metric of the worker client."""

from __future__ import annotations

from collections import defaultdict

from routing_hints.metrics import MetricStore, MetricTable

TABLE = MetricTable("routing_hints_client_")

PLANS = TABLE.counter(
    "plans", "Plans, by who decided: sidecar, reused, memory, local-rule, forwarded.", "origin"
)
SKIPPED_REQUESTS = TABLE.counter(
    "skipped_requests", "Plans for which the sidecar was not called, by reason.", "reason"
)
FAIL_OPEN = TABLE.counter(
    "fail_open", "Plans made without a decision of the sidecar that was called, by reason.", "reason"
)
PLAN_DEVIATIONS = TABLE.counter(
    "plan_deviations", "Engine parameters that differ from the decision, by reason.", "reason"
)
APPLIED = TABLE.counter("applied", "Engine parameters, by what they do with the rank.", "directive")
ID_ATTACHED = TABLE.counter("id_attached", "Engine parameters with the conversation id.", "phase")
ID_NOT_ATTACHED = TABLE.counter(
    "id_not_attached", "Engine parameters without the id although there is an identity, by reason.", "reason"
)
FINISHED = TABLE.counter("finished", "Requests that ended.", "outcome")
CONVERSATION_RETURNS = TABLE.counter(
    "conversation_returns",
    "The observed rank against the conversation's last one: first, same, moved, unknown.",
    "directive",
    "placement",
    "result",
)
CACHED_TOKENS = TABLE.counter(
    "cached_tokens",
    "Prompt tokens found in the KV cache, where the engine reports it.",
    "directive",
    "placement",
)
PROMPT_TOKENS = TABLE.counter(
    "prompt_tokens", "Prompt tokens of the requests that cached_tokens counts.", "directive", "placement"
)
ROUTER_RANK_DROPPED = TABLE.counter(
    "router_rank_dropped", "Ranks of the upstream router that the engine does not have."
)
LATE_DECISIONS = TABLE.counter(
    "late_decisions", "Decisions that came after their deadline; they are remembered."
)
REFUSED_ITEMS = TABLE.counter(
    "refused_items", "Requests that the sidecar refused: invalid_argument, internal, other.", "code"
)
REUSE_CORRECTED = TABLE.counter(
    "reuse_corrected",
    "Responses that differ from the remembered decision that was applied: id, affinity_key, directive, rank.",
    "what",
)
REUSE_DROPPED = TABLE.counter(
    "reuse_dropped",
    "Requests that a remembered decision was applied to and that could not be sent, by identity source.",
    "source",
)
STREAM_LOST = TABLE.counter(
    "stream_lost", "Ends of the stream; while there is none, each new reason.", "reason"
)
POLICIES_RECEIVED = TABLE.counter("policies_received", "Policies that the sidecar sent.")
FINISHES_LOST = TABLE.counter(
    "finishes_lost", "Finish reports dropped because the sidecar was away for too long."
)
INTERNAL_ERRORS = TABLE.counter(
    "internal_errors", "Internal errors of this library that no request felt.", "exception"
)


def read_stats(store: MetricStore) -> dict[str, dict[str, int]]:
    """Returns the counters as name to label values, joined by slashes, to count."""
    names: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for metric, labels, value in store.read_counters():
        names[metric.name]["/".join(labels)] = int(value)
    return dict(names)
