"""What all pages have in common: access, the frame around them, and how they say what went wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from flask import Blueprint, flash, make_response, redirect, render_template, request
from werkzeug.wrappers import Response

from ... import access
from ...access import Pass, Refused
from ...domain.durations import roughly
from ...runtime.host import Host
from ..problems import problem_of
from ..work import Work, work

View = Callable[..., Any]

_LONGEST_LINE = 2000
# No second slash, which would begin another host, and nothing that a browser leaves out.
_ON_THIS_SITE = re.compile(r"/(?:[^/\\\x00-\x20\x7f][^\\\x00-\x20\x7f]*)?")
NOTHING = "\N{EN DASH}"


@dataclass(frozen=True, slots=True)
class _Page:
    name: str
    rule: str
    method: str
    view: View


@dataclass(slots=True)
class Pages:
    """The pages of one module."""

    pages: list[_Page] = field(default_factory=list)

    def show(self, rule: str) -> Callable[[View], View]:
        """Declare a page; it returns the name of its template and what stands in it."""
        return self._declare("GET", rule)

    def act(self, rule: str) -> Callable[[View], View]:
        """Declare where a form is sent; it returns what was done, and the browser goes back to where it came from."""
        return self._declare("POST", rule)

    def _declare(self, method: str, rule: str) -> Callable[[View], View]:
        def declare(view: View) -> View:
            self.pages.append(_Page(f"page_{view.__name__}", rule, method, view))
            return view

        return declare

    def add_to(self, blueprint: Blueprint, host: Host) -> None:
        """Give a blueprint these pages."""
        for page in self.pages:
            blueprint.add_url_rule(page.rule, page.name, _handler(host, page), methods=[page.method])


def _handler(host: Host, page: _Page) -> Callable[..., Response]:
    def handle(**path: Any) -> Response:
        admitted: Pass | None = None
        try:
            admitted = access.admit(host, request, "read" if page.method == "GET" else "write")
            if page.method == "POST":
                access.check_csrf(request, admitted)
            with work(host, admitted) as at:
                said = page.view(at, **path)
                answer = said if isinstance(said, Response) else _render(at, *said) if page.method == "GET" else _back(said)
        except Exception as error:  # noqa: BLE001 - what is no answer is raised again
            return _refusal(host, error, known=admitted is not None)
        return answer

    return handle


def _render(at: Work, template: str, values: dict[str, Any]) -> Response:
    token = _token()
    everything = {"csrf": token, "writes": token is not None, "now": at.now(), "said": said, "app_name": at.host.app.name}
    answer = make_response(render_template(f"taskengine/{template}.html", **everything | values))
    if token is not None:
        access.set_csrf_cookie(at.host, request, answer, token)
    return answer


def _token() -> str | None:
    """Return the token for forms; None where the app has no key to sign it, so that there are none."""
    try:
        return access.csrf_token(request)
    except Refused:
        return None


def _back(done: str) -> Response:
    flash(done, "taskengine")
    return redirect(_next(), 303)


def _next() -> str:
    """Return where the form came from, on this site only."""
    wanted = request.form.get("next", "")
    return wanted if _ON_THIS_SITE.fullmatch(wanted) else f"{request.script_root}{request.path.split('/ui/')[0]}/"


def _refusal(host: Host, error: Exception, *, known: bool) -> Response:
    answer = problem_of(error)
    if answer is None:
        raise error
    if isinstance(error, Refused) and error.response is not None:
        return answer
    problem = json.loads(answer.get_data())
    page = make_response(render_template("taskengine/error.html", problem=problem, known=known, said=said, csrf=None, writes=False))
    page.status_code = answer.status_code
    return page


# --- how things are said ------------------------------------------------------------------------------------------------


class _Said:
    """Helpers of the templates. What they return is escaped like any other text."""

    @staticmethod
    def span(seconds: float | None) -> str:
        """Return a duration for people."""
        if seconds is None:
            return NOTHING
        return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 60 else roughly(seconds)

    @staticmethod
    def ago(when: datetime | None, now: datetime) -> str:
        """Return how far a time is from now."""
        if when is None:
            return NOTHING
        away = (now - when).total_seconds()
        return f"{roughly(away)} ago" if away >= 0 else f"in {roughly(-away)}"

    @staticmethod
    def iso(when: datetime | None) -> str:
        """Return a time for programs."""
        return "" if when is None else when.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

    @staticmethod
    def pretty(value: Any) -> str:
        """Return a JSON value over several lines."""
        return json.dumps(value, indent=2, ensure_ascii=False, default=str)

    @staticmethod
    def short(value: Any, longest: int = 90) -> str:
        """Return the beginning of a JSON value, or of a text, on one line."""
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        line = " ".join(text[:_LONGEST_LINE].split())
        return line if len(line) <= longest else f"{line[: longest - 1]}…"

    @staticmethod
    def many(number: int) -> str:
        """Return a number with its thousands apart."""
        return f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")

    @staticmethod
    def percent(share: float | None) -> str:
        """Return a share in per cent."""
        return NOTHING if share is None else f"{share:.1%}"


said = _Said()
