"""Every metric of the sidecar."""

from __future__ import annotations

from routing_hints.metrics import MetricTable

TABLE = MetricTable("routing_hints_")

DECISIONS = TABLE.counter("decisions", "Decisions.", "phase", "source", "placement", "directive", "mode")
NOTICES = TABLE.counter("notices", "Notices in decisions.", "notice")
IDENTITIES = TABLE.counter("identities", "Decisions with an identity, by the carrier that won.", "carrier")
DISTINCT_IDS = TABLE.counter(
    "distinct_ids",
    "Conversations that were not seen in the last 5 to 10 minutes; its rate is the distinct ids per second.",
    "carrier",
)
SINGLE_USE_REPORTS = TABLE.counter(
    "single_use_reports", "Times that the ids of a carrier began to be almost always new.", "carrier"
)
DROPPED_REQUESTS = TABLE.counter(
    "dropped_requests",
    "Requests that clients applied remembered decisions to and could not send, by the carrier that won.",
    "carrier",
)
REUSED_REQUESTS = TABLE.counter(
    "reused_requests",
    "Requests whose clients applied a remembered decision, by whether that equals the sidecar's.",
    "unchanged",
)
FINAL_REQUESTS = TABLE.counter(
    "final_requests", "Requests whose caller states that they are their conversation's last."
)
ENDED_CONVERSATIONS = TABLE.counter(
    "ended_conversations",
    "Conversations that ended with such a request; known is false where nothing was remembered of them.",
    "known",
)
POLICY_RELOADS = TABLE.counter(
    "policy_reloads",
    "Policy files read while serving: loaded, unchanged (on SIGHUP), rejected.",
    "outcome",
)
IDENTITY_CHANGES = TABLE.counter("identity_changes", "Changes of the identity policy in force.")
FINISHES = TABLE.counter("finishes", "Finish reports.", "outcome", "applied_directive", "id_attached")
LOCAL_REASONS = TABLE.counter(
    "local_reasons",
    "Finish reports whose client differs from the decision, by its reason; grpc and other stand for many.",
    "reason",
)
CONVERSATION_RETURNS = TABLE.counter(
    "conversation_returns",
    "The observed rank against the conversation's last one, of the 32,768 observed last: first, same, moved; "
    "unknown without a rank or a conversation.",
    "applied_directive",
    "placement",
    "phase",
    "result",
)
CACHED_TOKENS = TABLE.counter(
    "cached_tokens",
    "Prompt tokens found in the KV cache, where the engine reports it.",
    "applied_directive",
    "placement",
    "phase",
)
PROMPT_TOKENS = TABLE.counter(
    "prompt_tokens",
    "Prompt tokens of the requests that cached_tokens counts.",
    "applied_directive",
    "placement",
    "phase",
)
WITHHELD_WITHOUT_ID = TABLE.counter(
    "withheld_without_id",
    "Requests sent with neither rank nor id although no router of the engine probes its caches; must stay 0.",
)
UNMATCHED_FINISHES = TABLE.counter(
    "unmatched_finishes", "Finish reports whose decision is no longer recorded."
)
REFUSED_ITEMS = TABLE.counter(
    "refused_items", "Items of a stream that break a documented range or meet an internal error.", "code"
)
REFUSED_FINISHES = TABLE.counter("refused_finishes", "Finish reports that break a documented range.")
FAILED_CALLS = TABLE.counter("failed_calls", "Calls that ended with an error.", "code")
LOST_CALLS = TABLE.counter("lost_calls", "Calls whose peer had left before their end could be written.")
STREAMS = TABLE.counter("streams", "Streams opened.")
TLS_RELOADS = TABLE.counter(
    "tls_reloads", "Changed TLS files: reloaded, or rejected and the certificate before them kept.", "outcome"
)
PLACEMENTS = TABLE.counter(
    "placements",
    "Requests given a rank, by what the table had of their conversation; a retry does not count again.",
    "placement",
    "phase",
)
NEW_CONVERSATIONS = TABLE.counter(
    "new_conversations",
    "Of these the new ones, by length of the prompt in tokens; long ones come from another instance.",
    "phase",
    "prompt",
)
PLACED_RANKS = TABLE.counter(
    "placed_ranks",
    "Finish reports of placed requests by where they ran: as_placed, elsewhere, overflow (elsewhere while "
    "some rank was full), unknown.",
    "phase",
    "observed",
)
PLACEMENT_PAUSES = TABLE.counter(
    "placement_pauses", "Times that placement paused because an engine did not follow.", "phase"
)
ROUTER_RANK_DISAGREEMENT = TABLE.counter(
    "router_rank_disagreement",
    "Requests for which the upstream router chose another rank than the sidecar; kept is whose was sent.",
    "kept",
)
CONVERSATIONS_FORGOTTEN = TABLE.counter(
    "conversations_forgotten",
    "Entries that left the placement table: evicted, idle, ended, engine_gone.",
    "why",
)
LEASES_CLOSED = TABLE.counter(
    "leases_closed", "Placed requests no longer in flight: finished, retried, expired.", "why"
)
INTERNAL_ERRORS = TABLE.counter(
    "internal_errors", "Internal errors of the sidecar; the log has the place of each."
)

AFFINITY_ACTIVE = TABLE.gauge(
    "affinity_active_ratio",
    "Share of a phase's last 200 finished requests whose conversation can return to its rank: the id "
    "attached and no rank forced over the engine's router, or placed by the sidecar.",
    "phase",
)
PLACEMENT_CONVERSATIONS = TABLE.gauge("placement_conversations", "Conversations bound to a rank.", "phase")
PLACEMENT_REQUESTS_IN_FLIGHT = TABLE.gauge(
    "placement_requests_in_flight", "Placed requests that have not ended.", "phase"
)
PLACEMENT_PAUSED = TABLE.gauge("placement_paused", "Engines that are not placed on for now.", "phase")
PLACEMENT_OUTSTANDING_TOKENS = TABLE.gauge(
    "placement_outstanding_tokens", "Tokens that requests in flight have yet to compute.", "phase", "rank"
)
PLACEMENT_RESIDENT_TOKENS = TABLE.gauge(
    "placement_resident_tokens",
    "Tokens that live conversations likely keep in the rank's KV cache.",
    "phase",
    "rank",
)
PLACEMENT_OUTSTANDING_SKEW = TABLE.gauge(
    "placement_outstanding_skew_ratio",
    "The fullest rank's outstanding tokens against an even share, of the worst engine; 1 is even, 0 is idle.",
    "phase",
)
PLACEMENT_RESIDENT_SKEW = TABLE.gauge(
    "placement_resident_skew_ratio",
    "The fullest rank's resident tokens against an even share, of the worst engine; 1 is even, 0 is idle.",
    "phase",
)
SINGLE_USE_RATIO = TABLE.gauge(
    "single_use_ratio",
    "Share of a carrier's ids that were seen in one request only, of the last 100 or more that had 5 "
    "minutes to come again.",
    "carrier",
)
POLICY_REJECTED = TABLE.gauge("policy_rejected", "1 while the newest policy file is rejected, else 0.")
OPEN_STREAMS = TABLE.gauge("open_streams", "Streams open now.")
POLICY_INFO = TABLE.gauge(
    "policy_info", "The policy in force; always 1.", "identity_epoch", "mode", "revision"
)
BUILD_INFO = TABLE.gauge("build_info", "The installed version; always 1.", "version")

DECISION_SECONDS = TABLE.histogram(
    "decision_seconds",
    "Time that a decision takes, decoding and encoding included.",
    (0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.01, 0.1),
)
