"""`conversations`: the placement table of a running sidecar."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import grpc

from routing_hints.v1 import admin_pb2, admin_pb2_grpc, types_pb2
from sidecar.cli.connection import add_connection_options, make_connection

_PAGE_SIZE = 1_000
_HEADINGS = ("CONVERSATION", "WORKER", "PHASE", "RANK", "IN FLIGHT", "RESIDENT", "IDLE S")


@click.command()
@click.option("--worker", default="", metavar="ID", help="Show only this worker's conversations.")
@click.option("--limit", default=100, show_default=True, help="Number of conversations to show.")
@add_connection_options
def conversations(worker: str, limit: int, **options: Any) -> None:
    """Show the conversations that the sidecar places, most recently used first."""
    connection = make_connection(**options)
    rows: list[tuple[str, ...]] = [_HEADINGS]
    with connection.open() as channel:
        rows.extend(map(_describe, _list(channel, worker, limit, connection.timeout_s)))
    if len(rows) == 1:
        click.echo("no conversations: the sidecar places in no phase, or has had no request to place yet")
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _list(channel: grpc.Channel, worker: str, limit: int, timeout_s: float) -> Iterator[Any]:
    stub: Any = admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)
    request = admin_pb2.ListConversationsRequest(worker_id=worker)
    while limit > 0:
        request.page_size = min(limit, _PAGE_SIZE)
        page = stub.ListConversations(request, timeout=timeout_s)
        yield from page.conversations
        limit -= len(page.conversations)
        request.page_token = page.next_page_token
        if not page.next_page_token:
            return


def _describe(entry: admin_pb2.Conversation) -> tuple[str, ...]:
    return (
        entry.conversation_hash,
        entry.worker_id,
        types_pb2.Phase.Name(entry.phase).removeprefix("PHASE_").lower(),
        str(entry.dp_rank),
        str(entry.in_flight),
        str(entry.resident_tokens),
        f"{entry.idle.ToTimedelta().total_seconds():.1f}",
    )
