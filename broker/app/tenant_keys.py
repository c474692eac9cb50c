"""KEY_LIST: whose the access keys are that this broker knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from broker.kernel.request_family import RequestFamily
from holdmq.credentials.access_keys import AccessKey
from holdmq.rpc.connection import Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.key_headers import LIST_MAX, KeyListRequest, KeyListResponse, KeyRow


class TenantKeys(RequestFamily):
    """Names the keys that are of a tenant; what they may do and their secrets stay in the file.

    `keys` are those that are in force.
    """

    def __init__(self, keys: Callable[[], Iterable[AccessKey]]) -> None:
        self._keys = keys

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {RequestCode.KEY_LIST: self._list}

    def _list(self, request: Request) -> None:
        asked = request.header(KeyListRequest)
        count = max(1, min(asked.max_count, LIST_MAX))
        found = sorted(
            KeyRow(key.name, key.tenant, sorted(role.value for role in key.roles))
            for key in self._keys()
            if key.tenant and asked.tenant in ("", key.tenant) and key.name > asked.after
        )
        page = found[:count]
        request.reply(KeyListResponse(page, page[-1].name if len(found) > count else None))
