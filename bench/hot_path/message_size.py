"""How many bytes a question and its answer have, so that the peers move as many."""

from __future__ import annotations

from bench.workload import ENGINE, Workload
from routing_hints.v1 import service_pb2
from sidecar.counters import Counters
from sidecar.decider import Decider
from sidecar.policy import Policy
from sidecar.policy_file import PolicyHolder, activate
from sidecar.recorder import Recorder
from worker_client import codec
from worker_client.request import read_request

ITEMS = 6  # one of each leg and turn


def measure_messages(workload: Workload) -> list[tuple[int, int]]:
    """Returns the bytes of some of the workload's questions and of their answers, as the real codecs encode."""
    holder = PolicyHolder(activate(Policy()))
    decider = Decider(holder, Recorder(lambda: 0.0), Counters())
    policy = codec.decode_policy(encode_policy(holder))
    sizes = []
    for step in range(ITEMS):
        leg = workload.leg_of(0, step)
        facts = read_request(leg.request, leg.context, phase=leg.phase, headers=leg.headers)
        question = service_pb2.EnrichRequest()
        codec.fill_request(
            question,
            facts,
            policy,
            engine_pb=codec.encode_engine(ENGINE),
            router_rank=facts.router_rank,
            known_rank=None,
        )
        sizes.append((question.ByteSize(), decider.decide(question).ByteSize()))
    return sizes


def encode_policy(holder: PolicyHolder) -> service_pb2.ClientPolicy:
    """Returns the policy as a stream's client hears it."""
    from sidecar.answer_codec import encode_client_policy

    return encode_client_policy(holder.current.compiled)
