"""The resolver of a daemon whose name server fails: found first on its PYTHONPATH, so it is there before the daemon is.

CONFORMANCE_DNS is JSON: {"name": ["EAI_AGAIN", "ok"]}, one word for each look-up, the last again and again. `ok` is this host.
Such a daemon runs on asyncio's own loop: uvloop asks the C library and not Python.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

_PLANS: dict[str, list[str]] = json.loads(os.environ.get("CONFORMANCE_DNS", "{}"))
_ERRORS = {
    "NXDOMAIN": socket.EAI_NONAME,
    "NODATA": getattr(socket, "EAI_NODATA", socket.EAI_NONAME),
    "SERVFAIL": socket.EAI_AGAIN,
    "TIMEOUT": socket.EAI_AGAIN,
}
_getaddrinfo = socket.getaddrinfo


def _planned(host: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401  the resolver's own
    name = host.decode() if isinstance(host, bytes) else host
    plan = _PLANS.get(name)
    if not plan:
        return _getaddrinfo(host, *arguments, **options)
    word = plan.pop(0) if len(plan) > 1 else plan[0]
    if word.lower() == "ok":
        return _getaddrinfo("127.0.0.1", *arguments, **options)
    code = _ERRORS.get(word.upper(), getattr(socket, word.upper(), None))
    raise socket.gaierror(socket.EAI_FAIL if code is None else code, f"{word}, as the case says")


if _PLANS:
    socket.getaddrinfo = _planned
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # as if it weren't installed
