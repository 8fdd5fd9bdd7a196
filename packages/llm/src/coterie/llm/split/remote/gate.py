"""Who may be listened to: callers are known before their messages are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from coterie.core.errors import UserError
from coterie.core.wire.codec import ProtocolError
from coterie.llm.split.context import Diverged
from coterie.llm.split.remote.link import grpc
from coterie.llm.split.remote.messages import CLIENT, SERVICE, SESSION, TOKEN

CODES = {
    PermissionError: grpc.StatusCode.UNAUTHENTICATED,
    UserError: grpc.StatusCode.FAILED_PRECONDITION,
    Diverged: grpc.StatusCode.OUT_OF_RANGE,
    ProtocolError: grpc.StatusCode.INVALID_ARGUMENT,
}
"""Refusals as status codes."""

Metadata = dict[str, str]


def metadata_of(given: Iterable[tuple[str, Any]] | None) -> Metadata:
    """Read what a call says beside its message; what it does not say is empty."""
    said = {key: str(value) for key, value in given or ()}
    return {TOKEN: "", SESSION: "", CLIENT: ""} | said


class Gate(grpc.ServerInterceptor):
    """Refuse calls of strangers without receiving what they send.

    The transport holds back the bytes of a message until somebody reads it, beyond its window (64
    KiB at first, more where the line is fast: 7 to 24 MiB of 64 were seen within one machine), so
    a stranger's large message takes neither much memory nor the server's time.

    Args:
        check: is given the method and its metadata, and raises one of the keys of `CODES`.
    """

    def __init__(self, check: Callable[[str, Metadata], None]) -> None:
        self._check = check

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Give the handler of a call, or one that refuses it unread."""
        try:
            method = details.method.removeprefix(f"/{SERVICE}/")
            self._check(method, metadata_of(details.invocation_metadata))
        except (PermissionError, UserError) as error:
            code, why = CODES[type(error)], str(error)
            return grpc.stream_unary_rpc_method_handler(
                lambda requests, context: context.abort(code, why)
            )
        return continuation(details)
