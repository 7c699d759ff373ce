"""Who may look at the tasks through the web, and who may act on them. Nobody, until the app says so."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from flask import Request, current_app
from itsdangerous import BadSignature, Signer
from werkzeug.wrappers import Response

from .engine.presentation import printable
from .runtime.host import Host

Action = Literal["read", "write"]
Guard = Callable[[Action], Any]
G = TypeVar("G", bound=Guard)

CSRF_COOKIE = "taskengine_csrf"
CSRF_HEADER = "X-CSRF-Token"
CSRF_FIELD = "csrf_token"
_BEARER = "bearer "
_WARN_EVERY = 60.0
_FROM_BROWSERS = ("Cookie", "Origin", "Sec-Fetch-Site")

_logger = logging.getLogger("flask_taskengine.admin")
_warned_at: dict[str, float] = {}


class Guarded:
    """The part of the ``TaskEngine`` that says who may use the admin pages and the API."""

    guard: Guard | None

    def admin_guard(self, function: G) -> G:
        """Ask a function before each request to the admin pages and the API, and for the details of the health route.

        It is called in the request with ``"read"`` or ``"write"``. What it returns decides: something false refuses; a text allows, and
        is the name that stands in the audit log; a response, such as a redirect to the login, is sent; anything else true allows.

        Example:
            >>> @engine.admin_guard
            ... def allow(action):
            ...     return current_user.is_authenticated and current_user.is_admin
        """
        self.guard = function
        return function


@dataclass(frozen=True, slots=True)
class Pass:
    """A request that may go on."""

    who: str
    """For the audit log."""
    by_token: bool = False
    """Nothing in it comes from the browser by itself, so that no other page can have made it."""


class Refused(Exception):
    """The request may not go on; ``response`` is what the guard wants to be sent instead, if anything."""

    def __init__(self, why: str, status: int = 403, response: Response | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.response = response


def admit(host: Host, request: Request, action: Action) -> Pass:
    """Let a request go on, or refuse it.

    Raises:
        Refused: it may not; the log says what the operator can do.
    """
    header = request.headers.get("Authorization", "")
    allowed: Any = host.settings.api_unprotected
    guard: Guard | None = host.sender.guard
    if header.lower().startswith(_BEARER):
        admitted = _by_token(host, header[len(_BEARER) :].strip(), action)
        if admitted is not None:
            return admitted
        if guard is None and not allowed:
            raise Refused("this token is unknown", 401)
        # It may be one of the app's own, which the guard knows.
    if guard is not None:
        allowed = guard(action)
    if isinstance(allowed, Response):
        raise Refused("sent elsewhere by the guard", response=allowed)
    if not allowed:
        raise Refused(_explain(host, guard))
    return Pass(allowed if isinstance(allowed, str) else f"{request.remote_addr}")


def may_read(host: Host, request: Request) -> bool:
    """Say whether a request may see details; where the guard fails, or sends it away, it may not."""
    try:
        admit(host, request, "read")
    except Exception as error:  # noqa: BLE001 - the guard is the app's
        _logger.debug("no details for this request: %r", error)
        return False
    return True


def _by_token(host: Host, given: str, action: Action) -> Pass | None:
    found: str | None = None
    # All of them, so that the time says nothing.
    for token, mode in host.settings.api_tokens.items():
        if hmac.compare_digest(token.encode(), given.encode()):
            found = mode
    if found is None:
        return None
    if action == "write" and found != "read-write":
        raise Refused("this token may only read")
    return Pass(f"token {hashlib.sha256(given.encode()).hexdigest()[:8]}", by_token=True)


def _explain(host: Host, guard: Guard | None) -> str:
    if guard is not None:
        return "the app's guard refuses this request"
    remedy = "register a function with @engine.admin_guard, or set TASKENGINE_API_TOKENS, or TASKENGINE_API_UNPROTECTED=True for everybody"
    now = time.monotonic()
    if now - _warned_at.get(host.app.name, -_WARN_EVERY) >= _WARN_EVERY:
        _warned_at[host.app.name] = now
        _logger.warning("a request to %s was refused, since nothing says who may use it: %s", host.settings.api_url_prefix, remedy)
    return "nothing says yet who may use this: see the application's log"


# --- requests that other pages make -------------------------------------------------------------------------------------


def check_csrf(request: Request, admitted: Pass) -> None:
    """Refuse a request that changes something where another page may have made the browser send it.

    A token says that no browser sent it by itself, and so does a request without any of a browser's marks.

    Raises:
        Refused: the CSRF token is missing or wrong.
    """
    if admitted.by_token or not any(name in request.headers for name in _FROM_BROWSERS):
        return
    cookie = request.cookies.get(CSRF_COOKIE, "")
    given = request.headers.get(CSRF_HEADER) or request.form.get(CSRF_FIELD, "")
    if not cookie or not hmac.compare_digest(cookie.encode(), given.encode()) or not _genuine(cookie):
        raise Refused(f"the CSRF token is missing or wrong: load the page again, and send its token as {CSRF_HEADER} or {CSRF_FIELD}")


def csrf_token(request: Request) -> str:
    """Return the token that forms of this browser send back: the one in its cookie, or a new one."""
    cookie = request.cookies.get(CSRF_COOKIE, "")
    return cookie if cookie and _genuine(cookie) else _signer().sign(secrets.token_urlsafe(16)).decode()


def set_csrf_cookie(host: Host, request: Request, response: Response, token: str) -> None:
    """Keep the token in the browser, for these pages alone."""
    path = f"{request.script_root}{host.settings.api_url_prefix}" or "/"
    response.set_cookie(CSRF_COOKIE, token, httponly=True, samesite="Strict", secure=request.is_secure, path=path)


def _genuine(token: str) -> bool:
    try:
        _signer().unsign(token)
    except BadSignature:
        return False
    return True


def _signer() -> Signer:
    key = current_app.secret_key
    if not key:
        raise Refused("the app has no SECRET_KEY, without which pages can not act: set one, or use a token of TASKENGINE_API_TOKENS")
    return Signer(key, salt="flask_taskengine.csrf")


# --- what goes with every answer ----------------------------------------------------------------------------------------

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def harden(response: Response) -> Response:
    """Let browsers run nothing that does not come from the app itself, and keep nothing."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def audit(who: str, action: str, what: str) -> None:
    """Write the line that says who has done what; nothing in it can begin another one."""
    logging.getLogger("flask_taskengine.audit").info("%s", printable(f"{who}: {action} {what}", keep=""))
