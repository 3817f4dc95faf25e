"""The documented limits of the contract: the sidecar refuses what exceeds them, the client drops it first.

Sizes count bytes of UTF-8.
"""

from __future__ import annotations

MAX_ID_BYTES = 256
"""Of request, worker, decision and instance ids, versions, tokens, and names of headers and fields, and
`session_control.action`."""
MAX_VALUE_BYTES = 16_384
"""Of the value of a carrier, and of a tenant."""
MAX_ENTRIES = 256
"""Of headers, metadata, body fields and annotations, each."""
MAX_CARRIER_BYTES = 65_536
"""Of all carriers of a request, as the message `Identity` is serialized."""
MAX_MODEL_BYTES = 1_024
MAX_DP_SIZE = 65_536
"""Attention-DP ranks of one engine."""
MAX_BATCH_ENTRIES = 4_096
"""Items, and finish reports, of one stream message."""
MAX_ENGINES = 64
"""Engine profiles of one stream message, and those that a stream keeps."""
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Of one gRPC message to the sidecar."""
MAX_UINT32 = 2**32 - 1
MAX_ENDED = 1_024
"""Ended conversations of one stream message."""
MAX_DROPPED_CARRIERS = 256
"""Carriers of one stream message that lost requests."""
