"""The policy in force, and the scheduled change of its identity part."""

from __future__ import annotations

from routing_hints.vocabulary import IdentitySource, IdScope
from sidecar.policy.file import parse_policy
from sidecar.policy.holder import PolicyHolder, activate
from tests.support.policies import compile_yaml

_NOON_S = 1_893_499_200.0
"""2030-01-01T12:00:00Z."""
_BOTH = (
    "identity: {order: [conversation_id, 'header:x-session-id']}\n"
    "next_identity: {effective_at: 2030-01-01T12:00:00Z,"
    " order: [conversation_id, 'header:x-litellm-session-id', codex]}"
)


def test_next_identity_is_in_force_from_its_effective_at() -> None:
    policy = parse_policy(_BOTH)
    before, after = activate(policy, now_s=_NOON_S - 0.001), activate(policy, now_s=_NOON_S)
    assert (before.changes_at, after.changes_at) == (_NOON_S, None)
    assert [carrier.key for carrier in before.compiled.identity.carriers] == [
        "conversation_id",
        "header:x-session-id",
    ]
    assert [carrier.key for carrier in after.compiled.identity.carriers][1:] == [
        "header:x-litellm-session-id",
        "codex",
    ]
    assert before.compiled.revision != after.compiled.revision


def test_next_identity_has_the_epoch_that_it_has_as_identity() -> None:
    """So after the change the file may write it so, and nothing changes."""
    after = activate(parse_policy(_BOTH), now_s=_NOON_S).compiled
    moved = compile_yaml("identity: {order: [conversation_id, 'header:x-litellm-session-id', codex]}")
    assert (after.identity_epoch, after.revision) == (moved.identity_epoch, moved.revision)


def test_scheduled_change_changes_neither_epoch_nor_revision_before_its_time() -> None:
    present = compile_yaml("identity: {order: [conversation_id, 'header:x-session-id']}")
    announced = activate(parse_policy(_BOTH), now_s=_NOON_S - 1).compiled
    assert announced == present


def test_clients_send_the_carriers_of_both_identity_parts_before_a_change() -> None:
    """And resolve alone only what both parts resolve alike."""
    view = activate(parse_policy(_BOTH), now_s=_NOON_S - 1).view
    assert set(view.headers) >= {"x-session-id", "x-litellm-session-id", "thread-id"}
    assert view.per_request_headers == ("x-codex-turn-metadata", "x-dynamo-session-final")
    assert view.local_sources == (IdentitySource.CONVERSATION_ID,)
    rescoped = _BOTH.replace("12:00:00Z,", "12:00:00Z, scope: all,")
    view = activate(parse_policy(rescoped), now_s=_NOON_S - 1).view
    assert (view.local_sources, view.scope) == ((), IdScope.WEAK)


def test_replaced_policy_sets_the_event_of_those_who_wait_for_the_change() -> None:
    """The next change has an event of its own."""
    holder = PolicyHolder(activate(parse_policy(_BOTH), now_s=_NOON_S - 1))
    change = holder.next_change
    after = activate(parse_policy(_BOTH), now_s=_NOON_S)
    holder.replace(after)
    assert holder.current is after
    assert change.is_set()
    assert not holder.next_change.is_set()
