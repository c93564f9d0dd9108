"""Who may read the page: requests to this machine's own name that carry the token.

The token comes in the URL that `rljob ui` prints. The first answer moves it into a cookie and redirects to a URL
without it, so that it stays in no history and no Referer. Programs may send it as `Authorization: Bearer <token>`.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN = "token"  # noqa: S105  the name of the parameter
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of every answer: the page runs no script and shows nothing from elsewhere, and no other page shows it."""
_ELSEWHERE = (
    "This server answers to http://127.0.0.1:{port} and http://localhost:{port} only.\n"
    "If it runs on another machine, forward the same port number: "
    "ssh -L {port}:127.0.0.1:{port} HOST\n"
)
_MISSING = (
    "This page needs the token in the address that `rljob ui` has printed.\n"
    "If `rljob ui` was started again since, open the new address.\n"
)


@dataclass(frozen=True, slots=True)
class PageAccess:
    """Lets requests pass that carry the token.

    Args:
        app: answers them.
        token: to be carried.
        port: of the server.
    """

    app: ASGIApp
    token: str
    port: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-cache")
            await send(message)

        answer = self._refusal(scope)
        await (answer or self.app)(scope, receive, send_safely)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that may not pass, or has to come again without the token; None if it may pass."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        # A site elsewhere whose name is made to point here sends its own name.
        if headers.get("host", "") not in {f"{host}:{self.port}" for host in _HOSTS}:
            return PlainTextResponse(_ELSEWHERE.format(port=self.port), status_code=421)
        if scope["method"] not in {"GET", "HEAD"}:
            return PlainTextResponse(
                "Nothing can be changed here.\n", status_code=405, headers={"Allow": "GET, HEAD"}
            )
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if TOKEN in query:
            if not self._is_right(query[TOKEN][0]):
                return PlainTextResponse(_MISSING, status_code=401)
            answer = RedirectResponse(scope["path"] if scope["path"] == "/" else "/", status_code=303)
            answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
            return answer
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if self._is_right(bearer) or self._is_right(self._cookie_of(headers.get("cookie", ""))):
            return None
        return PlainTextResponse(_MISSING, status_code=401)

    @property
    def cookie(self) -> str:
        """The cookie's name: cookies are shared by all ports of a machine."""
        return f"rljob-ui-{self.port}"

    def _cookie_of(self, text: str) -> str:
        # Other servers of this machine set cookies of any form: one that is none must not hide ours.
        return cookie_parser(text).get(self.cookie, "")

    def _is_right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())
