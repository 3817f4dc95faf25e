"""Every machine-readable token that the two processes write, with its meaning and what to do about it.

A token is declared here, once: call sites name it, docs/reference.md lists it, log lines carry its advice,
and the sidecar takes as metric labels those of a client's reasons that are declared here.
"""

from __future__ import annotations

from collections.abc import Iterator


class Token(str):
    """A token; equal to its text.

    Attributes:
        meaning: what it says, for docs/reference.md.
        advice: what to change where it keeps affinity from acting; empty where there is nothing to change.
        parameter: what follows the text after a colon, if anything does.
        is_intended: whether it states the operator's own will, which is nothing to warn about.
        is_reason: whether it can be why an id is not attached.
    """

    meaning: str
    advice: str
    parameter: str
    is_intended: bool
    is_reason: bool

    def __new__(
        cls,
        text: str,
        meaning: str,
        advice: str = "",
        *,
        parameter: str = "",
        is_intended: bool = False,
        is_reason: bool = True,
    ) -> Token:
        """Makes a token of its text."""
        token = super().__new__(cls, text)
        token.meaning, token.advice, token.parameter = meaning, advice, parameter
        token.is_intended, token.is_reason = is_intended, is_reason
        return token

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Copies and pickles as plain text, since a copy stands in a message or a report."""
        return str, (str(self),)


class TokenGroup:
    """Tokens that occur in the same place, in the order of their declaration."""

    def __init__(self) -> None:
        self._tokens: dict[str, Token] = {}

    def __iter__(self) -> Iterator[Token]:
        return iter(self._tokens.values())

    def __contains__(self, text: object) -> bool:
        return text in self._tokens

    def declare(
        self,
        text: str,
        meaning: str,
        advice: str = "",
        *,
        parameter: str = "",
        is_intended: bool = False,
        is_reason: bool = True,
    ) -> Token:
        """Returns a new token of this group."""
        token = Token(
            text, meaning, advice, parameter=parameter, is_intended=is_intended, is_reason=is_reason
        )
        return self.include(token)

    def include(self, token: Token) -> Token:
        """Lists a token of another group here as well."""
        self._tokens[token] = token
        return token


NOTICES = TokenGroup()
"""In `EnrichResponse.notices`, most important first."""

UNKNOWN_ENUM = NOTICES.declare(
    "unknown-enum",
    "the request holds an enum value newer than this sidecar; it is forwarded",
    "upgrade the sidecar to the worker client's version",
    parameter="field",
)
KIND_NOT_NORMAL = NOTICES.declare(
    "kind-not-normal", "a health check or warm-up; forwarded, nothing read or written", is_intended=True
)
MODE_OFF = NOTICES.declare("mode-off", "the policy's mode is off", "set mode: on in the sidecar's policy")
MODE_SHADOW = NOTICES.declare(
    "mode-shadow",
    "the policy's mode is shadow: decided, not acted on",
    "set mode: on in the sidecar's policy",
)
WOULD_FORWARD = NOTICES.declare("would-forward", "mode `on` would forward the router's rank")
WOULD_WITHHOLD = NOTICES.declare("would-withhold", "mode `on` would withhold the rank")
WOULD_PLACE = NOTICES.declare("would-place", "mode `on` would place")
WOULD_ATTACH_ID = NOTICES.declare("would-attach-id", "mode `on` would attach the conversation id")
OUTSIDE_ROLLOUT = NOTICES.declare(
    "outside-rollout",
    "the conversation is not within `rollout_percent`",
    "raise rollout_percent in the sidecar's policy",
    is_intended=True,
)
NO_CONVERSATION_ID = NOTICES.declare(
    "no-conversation-id",
    "the engine could pin, but no carrier named a conversation",
    "send one of the headers of docs/identity.md, and check with explain that it reaches the worker",
)
DIALECT_CANNOT_CARRY_ID = NOTICES.declare(
    "dialect-cannot-carry-id",
    "the installed TensorRT-LLM release has no parameter for a conversation id",
    "use a TensorRT-LLM release with a conversation parameter, or rank source sidecar",
)
PLACEMENT_NOT_HONORED = NOTICES.declare(
    "placement-not-honored",
    "the engine ran more than 5 % of the last 200 placed requests on other ranks; the router's rank is "
    "forwarded until the cool-down of 60 s is over",
    "check that the engine's router takes explicit ranks and that dp_size is right",
)
FIRST_RANK_NOT_RECORDED = NOTICES.declare(
    "first-rank-not-recorded",
    "rank source is sidecar, but the engine's conversation router does not record an explicit first rank",
    "use rank source engine, or a release that records the first rank",
)
KV_CACHE_ROUTER_PLACES = NOTICES.declare(
    "kv-cache-router-places",
    "rank source is sidecar, but the engine's router places by its cache",
    "use rank source engine, or turn the KV-cache-aware router off",
)
PLACEMENT_PHASE_OFF = NOTICES.declare(
    "placement-phase-off",
    "the policy does not place in this phase",
    "add the phase to placement.phases in the sidecar's policy",
    is_intended=True,
)
DP_SIZE_UNKNOWN = NOTICES.declare(
    "dp-size-unknown",
    "rank source is sidecar, but the number of ranks is unknown",
    "pass an EngineProfile that was detected from the engine",
)
DP_SIZE_TOO_LARGE = NOTICES.declare(
    "dp-size-too-large",
    "rank source is sidecar, but the engine claims more than 1,024 ranks",
    "correct dp_size in the EngineProfile",
)
ROUTER_RANK_KEPT = NOTICES.declare(
    "router-rank-kept",
    "the upstream router chose a rank, and it stays the owner",
    "set placement.when: always in the sidecar's policy, or let the router send no rank",
)
RANK_BYPASSES_KV_CACHE_ROUTER = NOTICES.declare(
    "rank-bypasses-kv-cache-router",
    "the router's rank is forced over an engine router that probes its caches",
    "set rank source engine",
)
ROUTER_PINS_NOTHING = NOTICES.declare(
    "router-pins-nothing",
    "there is an id, and the engine's router does not use ids",
    "set attention_dp_config.kv_cache_routing_conversation_affinity",
)
ADP_ROUTER_UNKNOWN = NOTICES.declare(
    "adp-router-unknown",
    "there is an id, and the engine's router could not be read",
    "pass an EngineProfile that was detected from the engine, or set affinity to on",
)
SINGLE_USE_CARRIER = NOTICES.declare(
    "single-use-carrier",
    "the ids of this carrier almost never repeat, so `single_use_guard: enforce` does not attach them",
    "find who sends a new id with every request; the log line single_use_ids names the carrier",
)
SESSION_FINAL = NOTICES.declare(
    "session-final", "the caller says that this is the conversation's last request", is_reason=False
)

UNUSABLE_REASONS = TokenGroup()
"""Why a carrier is unusable, in Explain."""

BLANK = UNUSABLE_REASONS.declare("blank", "nothing is left after trimming")
PLACEHOLDER = UNUSABLE_REASONS.declare("placeholder", "`null`, `none`, `undefined`, `n/a`, `unknown` or `-`")
ENDPOINT_TOKEN = UNUSABLE_REASONS.declare("endpoint-token", "the value is a worker's address in base64")
AGENT_WITHOUT_SESSION = UNUSABLE_REASONS.declare(
    "agent-without-session", "an agent id came without its session"
)
NAMES_NO_SESSION = UNUSABLE_REASONS.declare(
    "names-no-session", "`metadata.user_id` is in neither of the two formats that name a session"
)
MALFORMED = UNUSABLE_REASONS.declare("malformed", "the value is not percent-encoded UTF-8")
AFFINITY_ONLY = UNUSABLE_REASONS.declare(
    "affinity-only", "the policy says that this carrier names a group of conversations"
)

REMARKS = TokenGroup()
"""What else a carrier says, in Explain."""

DERIVED_TOO_LONG = REMARKS.declare("derived-too-long", "the id is derived: longer than 256 bytes")
DERIVED_CONTROL_CHARACTER = REMARKS.declare(
    "derived-control-character", "the id is derived: it has a control character"
)
DERIVED_RESERVED_PREFIX = REMARKS.declare(
    "derived-reserved-prefix", "the id is derived: it begins as derived ids do"
)
DERIVED_TENANT_AND_SHORT = REMARKS.declare(
    "derived-tenant-and-short", "the id is derived: under 16 bytes and of a tenant"
)
DERIVED_TENANT = REMARKS.declare("derived-tenant", "the id is derived: of a tenant, under `scope: all`")
DERIVED_ALWAYS = REMARKS.declare("derived-always", "the id is derived: `ids: derive_always`")
DERIVED_WITHIN_RUN = REMARKS.declare("derived-within-run", "the id is derived: unique within its run only")
HAS_PARENT = REMARKS.declare("has-parent", "there is a parent, or what the policy takes for one")
LAST_REQUEST = REMARKS.declare("last-request", "the conversation ends with this request")
TIMEOUT_NOT_USED = REMARKS.declare(
    "timeout-not-used", "the timeout of `session_control`, which has no effect", parameter="seconds"
)

SKIP_REASONS = TokenGroup()
"""Why the client does not call the sidecar, in its metric `skipped_requests`."""

GATE_OFF = SKIP_REASONS.declare("gate-off", "affinity is off", "set ROUTING_HINTS_AFFINITY to auto or on")
SETTING_CANNOT_ACT = SKIP_REASONS.declare(
    "setting-cannot-act", "a setting can never act on this engine; one ERROR names it", "see that log line"
)
ENGINE_NOT_READY = SKIP_REASONS.declare("engine-not-ready", "the engine does not exist yet")
KIND_HEALTH_CHECK = SKIP_REASONS.declare("kind-health-check", "not a user's request", is_intended=True)
KIND_WARMUP = SKIP_REASONS.declare("kind-warmup", "not a user's request", is_intended=True)
PHASE_UNKNOWN = SKIP_REASONS.declare("phase-unknown", "`phase` is not a Phase", "pass worker_client.Phase")
CLIENT_CLOSED = SKIP_REASONS.declare("client-closed", "the client was closed")
CLIENT_INTERNAL_ERROR = SKIP_REASONS.declare(
    "client-internal-error", "an internal error of the client; one ERROR names its place", "report it"
)

FAIL_OPEN_REASONS = TokenGroup()
"""Why the client uses no decision of the sidecar, in its metric `fail_open` and in `Finish.local_reason`."""

SOCKET_MISSING = FAIL_OPEN_REASONS.declare(
    "socket-missing",
    "there is no socket file: the sidecar never started, or its volume is not mounted",
    "start the sidecar, or mount the folder of its socket into the worker's container",
)
CONNECTION_REFUSED = FAIL_OPEN_REASONS.declare(
    "connection-refused", "nobody listens there", "start the sidecar, or correct ROUTING_HINTS_TARGET"
)
PERMISSION_DENIED = FAIL_OPEN_REASONS.declare(
    "permission-denied",
    "the worker's user may not connect",
    "run the worker in the group of the sidecar's socket",
)
NOT_GRPC = FAIL_OPEN_REASONS.declare(
    "not-grpc", "a server of another protocol listens there", "correct ROUTING_HINTS_TARGET"
)
CONNECTION_TIMED_OUT = FAIL_OPEN_REASONS.declare(
    "connection-timed-out",
    "something accepts connections and sends nothing: the sidecar's process is stopped",
    "restart the sidecar",
)
CONNECTION_LOST = FAIL_OPEN_REASONS.declare("connection-lost", "the connection broke")
SIDECAR_DRAINING = FAIL_OPEN_REASONS.declare("sidecar-draining", "the sidecar is shutting down")
STREAM_ENDED = FAIL_OPEN_REASONS.declare("stream-ended", "the sidecar ended the stream")
GRPC_STATUS = FAIL_OPEN_REASONS.declare(
    "grpc-",
    "the call ended with another gRPC status; `grpc-unimplemented` is not a sidecar of this contract",
    parameter="status",
)
CIRCUIT_OPEN = FAIL_OPEN_REASONS.declare(
    "circuit-open",
    "no response for longer than the longest deadline; one request a second still tries",
    "look at the sidecar's health and processor time",
)
SIDECAR_TIMED_OUT = FAIL_OPEN_REASONS.declare(
    "sidecar-timed-out",
    "the decision did not come within the deadline",
    "look at the sidecar's processor time and at decision_seconds",
)
NO_RESPONSE = FAIL_OPEN_REASONS.declare(
    "no-response", "the stream broke while waiting, or the sidecar refused the item"
)
TOO_MANY_PENDING = FAIL_OPEN_REASONS.declare(
    "too-many-pending", "8,192 requests wait for the sidecar", "give the sidecar more processor time"
)
CANCELLED_WHILE_WAITING = FAIL_OPEN_REASONS.declare(
    "cancelled-while-waiting", "the caller was cancelled before the decision came"
)

DEVIATION_REASONS = TokenGroup()
"""Why engine parameters differ from the decision, in the metric `plan_deviations` and
`Finish.local_reason`."""

DEVIATION_REASONS.include(DIALECT_CANNOT_CARRY_ID)
NO_DISAGGREGATED_PARAMS = DEVIATION_REASONS.declare(
    "no-disaggregated-params",
    "the worker passed no `DisaggregatedParams` to hold the id",
    "pass the request's DisaggregatedParams to plan.engine_kwargs",
)
ENGINE_REFUSED_ID = DEVIATION_REASONS.declare(
    "engine-refused-id",
    "the engine's own validation refused the id",
    "look at the request of that conversation_hash",
)
ENGINE_REFUSED_SCHEDULE = DEVIATION_REASONS.declare(
    "engine-refused-schedule", "the engine's own validation refused the scheduling parameters"
)
PLACED_RANK_OUT_OF_RANGE = DEVIATION_REASONS.declare(
    "placed-rank-out-of-range", "the sidecar placed on a rank that the engine does not have"
)
GIVEN_RANK_OUT_OF_RANGE = DEVIATION_REASONS.declare(
    "given-rank-out-of-range",
    "the worker's own scheduling parameters name a rank that the engine does not have",
)
TENSORRT_LLM_NOT_IMPORTABLE = DEVIATION_REASONS.declare(
    "tensorrt-llm-not-importable",
    "there is no `SchedulingParams` to build",
    "run the client where the engine is installed",
)

READING_NOTICES = TokenGroup()
"""What the client drops while it reads a request, in `plan.notices`."""

VALUE_NOT_TEXT_DROPPED = READING_NOTICES.declare("value-not-text-dropped", "a carrier's value is not text")
VALUE_NOT_UTF8_DROPPED = READING_NOTICES.declare("value-not-utf8-dropped", "a carrier's value is not UTF-8")
VALUE_TOO_LONG_DROPPED = READING_NOTICES.declare(
    "value-too-long-dropped", "a carrier's value is longer than its limit"
)
HEADERS_OVER_LIMIT_DROPPED = READING_NOTICES.declare(
    "headers-over-limit-dropped", "the request has more than 256 headers"
)
ANNOTATIONS_OVER_LIMIT_DROPPED = READING_NOTICES.declare(
    "annotations-over-limit-dropped", "the request has more than 256 annotations"
)
CARRIERS_OVER_LIMIT_DROPPED = READING_NOTICES.declare(
    "carriers-over-limit-dropped",
    "the request's carriers have more than 64 KiB in all; the last ones are left out",
)
ROUTER_RANK_OUT_OF_RANGE = READING_NOTICES.declare(
    "router-rank-out-of-range", "the router's rank is not one of the engine's"
)

_DEFAULT_ADVICE = "see the token in docs/reference.md"
_REPORTED = (FAIL_OPEN_REASONS, DEVIATION_REASONS)
_ALL: dict[str, Token] = {token: token for group in (NOTICES, SKIP_REASONS, *_REPORTED) for token in group}


def _find(text: str) -> Token | None:
    """Returns the token of a text, which may have a parameter after a colon."""
    return _ALL.get(text.partition(":")[0])


def advise(reason: str) -> str:
    """Returns what to change where `reason`, a token, keeps affinity from acting."""
    token = _find(reason)
    return token.advice if token is not None and token.advice else _DEFAULT_ADVICE


def explains_missing_id(notice: str) -> bool:
    """Returns whether a notice can be why an id is not attached; one of another version can."""
    token = _find(notice)
    return token is None or token.is_reason


def is_intended(reason: str) -> bool:
    """Returns whether a reason states the operator's own will, so that nobody needs a warning."""
    token = _find(reason)
    return token is not None and token.is_intended


def label_reported_reason(reason: str) -> str:
    """Returns a client's reason as a metric label; `grpc` and `other` stand for what is not declared here."""
    if reason.startswith(GRPC_STATUS):
        return "grpc"
    return reason if any(reason in group for group in _REPORTED) else "other"
