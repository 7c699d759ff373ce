"""Spans of enqueues and runs, as one process makes them: parents, links, attributes, and what handlers see of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest
import sqlalchemy as sa

pytest.importorskip("opentelemetry", reason="of the extra opentelemetry")
pytest.importorskip("opentelemetry.sdk", reason="the extra test brings opentelemetry-sdk")

from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import Span, SpanProcessor

from flask_taskengine import ConfigError, Reject, RetryPolicy, Snooze, TaskContext
from flask_taskengine.telemetry import logs, names
from tests.support.shop import Shop
from tests.support.shop_fixtures import MakeShop, RunWorker, make_shop, run_worker
from tests.support.spans import Seen, collected, provider
from tests.support.waiting import wait_until

__all__ = ["make_shop", "run_worker"]

TWICE = RetryPolicy(max_attempts=2, base_backoff=0, jitter=0)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[list[Seen]]:
    """Collect the spans that end in this process."""
    with collected() as spans:
        yield spans


@pytest.fixture(params=["child"])
def shop(make_shop: MakeShop, request: pytest.FixtureRequest, spans: list[Seen]) -> Shop:
    """Give a shop that is traced, with a processor for every way in which an attempt can end."""
    shop = make_shop(TASKENGINE_TRACING=request.param)
    snoozed: set[int] = set()

    @shop.engine.task("succeeds")
    def succeed(payload: object) -> None: ...

    @shop.engine.task("writes")
    def write(payload: object) -> None:
        from tests.support.shop import Effect

        shop.db.session.add(Effect(name="written"))

    @shop.engine.task("dies", retry=TWICE)
    def die(payload: object) -> None:
        raise ValueError("no")

    @shop.engine.task("fails")
    def fail(payload: object) -> None:
        raise Reject("never")

    @shop.engine.task("overruns", retry=RetryPolicy(max_attempts=1), timeout=0.2)
    def overrun(payload: object, context: TaskContext) -> None:
        while True:
            context.cancel_event.wait(0.01)

    @shop.engine.task("snoozes")
    def snooze(payload: object, context: TaskContext) -> None:
        if context.task_id not in snoozed:
            snoozed.add(context.task_id)
            raise Snooze(0)

    return shop


def runs(spans: list[Seen], task_id: int | None = None) -> list[Seen]:
    """Return the consumer spans, of one task or of all, in the order of their attempts."""
    found = [span for span in spans if span.kind == "CONSUMER" and task_id in (None, span.attributes[names.TASK_ID])]
    return sorted(found, key=lambda span: span.began)


def enqueues(spans: list[Seen]) -> list[Seen]:
    """Return the producer spans."""
    return [span for span in spans if span.kind == "PRODUCER"]


def work(shop: Shop, run_worker: RunWorker, *ids: int, **options: Any) -> None:
    """Let a worker run until these tasks have ended, and all that is to be told of them is told."""
    worker = run_worker(shop, **options)
    for task_id in ids:
        shop.wait_for(task_id)
    worker.stop(5)


# --- parents --------------------------------------------------------------------------------------------------------------


def test_a_run_belongs_to_the_trace_of_its_enqueue(shop: Shop, run_worker: RunWorker, spans: list[Seen]) -> None:
    """The span around the enqueue is a child of what surrounds that, and the parent of the run."""
    with trace.get_tracer("app").start_as_current_span("request") as request:
        task_id = shop.enqueue("succeeds", priority=5)
    work(shop, run_worker, task_id)
    [sent], [run] = enqueues(spans), runs(spans)
    assert (sent.name, run.name) == ("enqueue succeeds", "process succeeds")
    assert sent.parent_id == request.get_span_context().span_id
    assert run.parent_id == sent.span_id
    assert {sent.trace_id, run.trace_id} == {request.get_span_context().trace_id}
    assert run.began >= sent.ended
    assert sent.attributes == {
        "messaging.system": "flask_taskengine",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "succeeds",
        "messaging.message.id": str(task_id),
        "taskengine.task.type": "succeeds",
        "taskengine.task.id": task_id,
        "taskengine.task.priority": 5,
        "taskengine.task.created": True,
    }
    waited = run.attributes.pop("taskengine.task.queue_wait")
    node = run.attributes.pop("taskengine.node")
    assert 0 <= waited < 30
    assert node
    assert run.attributes == {
        "messaging.system": "flask_taskengine",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "succeeds",
        "messaging.message.id": str(task_id),
        "taskengine.task.type": "succeeds",
        "taskengine.task.id": task_id,
        "taskengine.task.priority": 5,
        "taskengine.task.attempt": 1,
        "taskengine.task.outcome": "succeeded",
    }
    assert (sent.status, run.status) == ("UNSET", "UNSET")


@pytest.mark.parametrize("shop", ["link"], indirect=True)
def test_a_run_may_be_linked_instead(shop: Shop, run_worker: RunWorker, spans: list[Seen]) -> None:
    """It begins a trace of its own, with a link to the enqueue; what it does is its child, and baggage is there, too."""
    seen: list[Any] = []

    @shop.engine.task("looks")
    def look(payload: object) -> None:
        seen.append((baggage.get_baggage("tenant"), trace.get_current_span().get_span_context().span_id))

    token = context.attach(baggage.set_baggage("tenant", "blue"))
    task_id = shop.enqueue("looks")
    context.detach(token)
    work(shop, run_worker, task_id)
    [sent], [run] = enqueues(spans), runs(spans)
    assert run.parent_id is None
    assert run.links == [sent.span_id]
    assert run.trace_id != sent.trace_id
    assert seen == [("blue", run.span_id)]


def test_every_attempt_has_the_same_parent(shop: Shop, run_worker: RunWorker, spans: list[Seen]) -> None:
    """Each attempt is a span of its own, a child of the one enqueue: retries, snoozes, and a retry by hand."""
    ids = [shop.enqueue("dies"), shop.enqueue("snoozes"), shop.enqueue("fails")]
    work(shop, run_worker, *ids)
    with shop.app.app_context():
        shop.engine.retry(ids[2])
        shop.db.session.commit()
    work(shop, run_worker, *ids)
    for task_id, attempts, outcomes in zip(
        ids, [[1, 2], [1, 1], [1, 2]], [["retried", "dead"], ["requeued", "succeeded"], ["failed", "failed"]], strict=True
    ):
        [sent] = [span for span in enqueues(spans) if span.attributes[names.TASK_ID] == task_id]
        of_task = runs(spans, task_id)
        assert [run.parent_id for run in of_task] == [sent.span_id] * 2
        assert [run.attributes[names.TASK_ATTEMPT] for run in of_task] == attempts
        assert [run.attributes[names.TASK_OUTCOME] for run in of_task] == outcomes


def test_a_batch_is_one_producer_span(shop: Shop, run_worker: RunWorker, spans: list[Seen]) -> None:
    """Its context is in each row, so that every run is its child; the attributes say how many and of which type."""
    ids = shop.enqueue_many(*["succeeds"] * 5)
    mixed = shop.enqueue_many("succeeds", "writes")
    work(shop, run_worker, *ids, *mixed)
    one_type, several = enqueues(spans)
    assert (one_type.name, several.name) == ("enqueue succeeds", "enqueue")
    assert one_type.attributes["messaging.batch.message_count"] == 5
    assert one_type.attributes["messaging.destination.name"] == "succeeds"
    assert several.attributes["messaging.batch.message_count"] == 2
    assert "messaging.destination.name" not in several.attributes
    assert {run.parent_id for task_id in ids for run in runs(spans, task_id)} == {one_type.span_id}
    assert {run.parent_id for task_id in mixed for run in runs(spans, task_id)} == {several.span_id}


def test_an_enqueue_in_a_handler_continues_the_trace(shop: Shop, run_worker: RunWorker, spans: list[Seen]) -> None:
    """A task that enqueues another is its parent's parent."""
    second: list[int] = []

    @shop.engine.task("begins")
    def begin(payload: object) -> None:
        second.append(shop.engine.enqueue("succeeds").id)

    first = shop.enqueue("begins")
    worker = run_worker(shop)
    shop.wait_for(first)
    shop.wait_for(second[0])
    worker.stop(5)
    [sent] = [span for span in enqueues(spans) if span.attributes[names.TASK_ID] == second[0]]
    assert sent.parent_id == runs(spans, first)[0].span_id
    assert runs(spans, second[0])[0].parent_id == sent.span_id
    assert len({span.trace_id for span in (*enqueues(spans), *runs(spans))}) == 1


# --- rows of any origin ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stored",
    [
        None,
        "{}",
        "[]",
        '"00-1"',
        "12",
        "null",
        '{"traceparent": null}',
        '{"traceparent": 7, "baggage": 7}',
        '{"traceparent": ["00"]}',
        '{"traceparent": "00-0-0-0"}',
        '{"traceparent": "00-00000000000000000000000000000000-0000000000000000-01"}',
        '{"traceparent": "' + "0" * 50_000 + '"}',
        '{"tracestate": "a=b"}',
    ],
)
def test_a_row_made_by_hand_begins_a_trace(shop: Shop, run_worker: RunWorker, spans: list[Seen], stored: str | None) -> None:
    """Whatever stands in ``trace_context``, or nothing: the task runs, and its span is a root."""
    cast = "CAST(:stored AS jsonb)" if shop.is_postgresql else ":stored"
    shop.sql(f"INSERT INTO taskengine_task (type, trace_context) VALUES ('succeeds', {cast})", stored=stored)
    [task] = shop.tasks()
    work(shop, run_worker, task.id)
    assert shop.task(task.id).status == "SUCCEEDED"
    [run] = runs(spans)
    assert (run.parent_id, run.links) == (None, [])


@pytest.mark.sqlite
def test_a_context_that_is_no_json_is_none(make_shop: MakeShop, run_worker: RunWorker, spans: list[Seen]) -> None:
    """SQLite keeps any text; the task runs all the same."""
    shop = make_shop(TASKENGINE_TRACING="child")
    if shop.is_postgresql:
        return

    @shop.engine.task("succeeds")
    def succeed(payload: object) -> None: ...

    shop.sql("INSERT INTO taskengine_task (type, trace_context) VALUES ('succeeds', 'x{')")
    work(shop, run_worker, 1)
    assert [run.parent_id for run in runs(spans)] == [None]


def test_a_row_made_by_hand_may_carry_a_context(shop: Shop, run_worker: RunWorker, spans: list[Seen]) -> None:
    """Who inserts by SQL can continue a trace, by the names of the W3C."""
    cast = "CAST(:stored AS jsonb)" if shop.is_postgresql else ":stored"
    stored = f'{{"traceparent": "{TRACEPARENT}"}}'
    shop.sql(f"INSERT INTO taskengine_task (type, trace_context) VALUES ('succeeds', {cast})", stored=stored)
    work(shop, run_worker, shop.tasks()[0].id)
    [run] = runs(spans)
    assert (f"{run.trace_id:032x}", f"{run.parent_id:016x}") == tuple(TRACEPARENT.split("-")[1:3])


def test_what_is_stored_is_of_the_w3c(shop: Shop, spans: list[Seen]) -> None:
    """``traceparent`` and ``baggage`` under their own names; baggage that is larger than anybody must accept is left out."""
    token = context.attach(baggage.set_baggage("tenant", "blue & green"))
    first = shop.enqueue("succeeds")
    context.detach(token)
    token = context.attach(baggage.set_baggage("tenant", "x" * 20_000))
    second = shop.enqueue("succeeds")
    context.detach(token)
    for span, task_id, carried in zip(enqueues(spans), (first, second), ({"baggage": "tenant=blue+%26+green"}, {}), strict=True):
        stored = shop.task(task_id).trace_context
        assert stored is not None
        version, trace_id, span_id, flags = stored.pop("traceparent").split("-")
        assert (version, trace_id, span_id, int(flags, 16) & 1) == ("00", f"{span.trace_id:032x}", f"{span.span_id:016x}", 1)
        assert stored == carried


# --- outcomes ---------------------------------------------------------------------------------------------------------------


def test_errors_are_recorded(shop: Shop, run_worker: RunWorker, spans: list[Seen]) -> None:
    """The span of an attempt that failed has the status ERROR, the class of the error and an exception event."""
    ids = {name: shop.enqueue(name) for name in ("dies", "fails", "overruns", "succeeds")}
    work(shop, run_worker, *ids.values())
    seen = {name: runs(spans, task_id)[-1] for name, task_id in ids.items()}
    assert {name: (run.attributes[names.TASK_OUTCOME], run.attributes.get(names.ERROR_TYPE), run.status) for name, run in seen.items()} == {
        "dies": ("dead", "ValueError", "ERROR"),
        "fails": ("failed", "Reject", "ERROR"),
        "overruns": ("dead", "TaskTimedOut", "ERROR"),
        "succeeds": ("succeeded", None, "UNSET"),
    }
    [event] = seen["dies"].events
    assert (event["name"], event["exception.type"], event["exception.message"]) == ("exception", "ValueError", "no")
    assert "raise ValueError" in event["exception.stacktrace"]
    assert seen["dies"].description == "ValueError: no"
    assert seen["succeeds"].events == []


def test_a_lost_lease_is_an_error(shop: Shop, run_worker: RunWorker, spans: list[Seen]) -> None:
    """A run whose writes are rolled back since its lease was lost says so."""
    began, go = threading.Event(), threading.Event()

    @shop.engine.task("holds")
    def hold(payload: object) -> None:
        began.set()
        assert go.wait(20)

    task_id = shop.enqueue("holds")
    worker = run_worker(shop)
    assert began.wait(10)
    shop.sql(f"UPDATE taskengine_task SET claims = claims + 1 WHERE id = {task_id}")
    go.set()
    wait_until(lambda: runs(spans))
    worker.stop(0)
    [run] = runs(spans)
    assert (run.attributes[names.TASK_OUTCOME], run.status) == ("lease_lost", "ERROR")


def test_a_cancelled_run(shop: Shop, run_worker: RunWorker, spans: list[Seen]) -> None:
    """Somebody's wish is no error."""
    began = threading.Event()

    @shop.engine.task("waits")
    def wait(payload: object, context: TaskContext) -> None:
        began.set()
        assert context.cancel_event.wait(20)

    task_id = shop.enqueue("waits")
    worker = run_worker(shop)
    assert began.wait(10)
    with shop.app.app_context():
        shop.engine.cancel(task_id)
        shop.db.session.commit()
    shop.wait_for(task_id)
    worker.stop(5)
    [run] = runs(spans)
    assert (run.attributes[names.TASK_OUTCOME], run.status) == ("cancelled", "UNSET")


def test_an_enqueue_that_fails_is_an_error(shop: Shop, spans: list[Seen]) -> None:
    """The producer span has the error that the caller gets."""
    with shop.app.app_context():
        shop.db.session.execute(sa.text("DROP TABLE taskengine_task"))
        with pytest.raises(Exception, match="taskengine_task"):
            shop.engine.enqueue("succeeds")
        shop.db.session.rollback()
    [sent] = enqueues(spans)
    assert sent.status == "ERROR"
    assert sent.events[0]["name"] == "exception"


def test_a_deduplicated_enqueue_says_so(shop: Shop, spans: list[Seen]) -> None:
    """The span carries the id of the task that was there."""
    first = shop.enqueue("succeeds", idempotency_key="k")
    assert shop.enqueue("succeeds", idempotency_key="k") == first
    assert [(span.attributes[names.TASK_ID], span.attributes[names.TASK_CREATED]) for span in enqueues(spans)] == [
        (first, True),
        (first, False),
    ]


def test_the_span_ends_with_the_run(shop: Shop, run_worker: RunWorker, spans: list[Seen]) -> None:
    """Its length is that of the handler, however much later the end was recorded; a commit with the handler's own is inside."""
    pause = threading.Event()

    @shop.engine.task("takes")
    def take(payload: object) -> None:
        pause.wait(0.05)

    ids = [shop.enqueue("takes"), shop.enqueue("writes")]
    work(shop, run_worker, *ids)
    assert 0.05 <= (runs(spans, ids[0])[0].ended - runs(spans, ids[0])[0].began) / 1e9 < 5
    assert all(run.ended > run.began for run in runs(spans))


def test_spans_carry_what_is_declared(shop: Shop, run_worker: RunWorker, spans: list[Seen]) -> None:
    """Every attribute that is set is declared, and every one that is declared is set by something."""
    ids = [shop.enqueue("dies"), *shop.enqueue_many("succeeds", "succeeds")]
    work(shop, run_worker, *ids)
    ours = [span for span in spans if span.kind in ("PRODUCER", "CONSUMER")]
    assert set().union(*(span.attributes for span in ours)) == set(names.SPAN_ATTRIBUTES)


# --- what is around a handler ---------------------------------------------------------------------------------------------


def test_a_handler_sees_its_span_and_baggage(shop: Shop, run_worker: RunWorker, spans: list[Seen]) -> None:
    """What it does is a child of its run, and baggage of the request is there."""

    @shop.engine.task("looks")
    def look(payload: object) -> None:
        with trace.get_tracer("app").start_as_current_span("inner") as inner:
            inner.set_attribute("tenant", str(baggage.get_baggage("tenant")))

    token = context.attach(baggage.set_baggage("tenant", "blue"))
    task_id = shop.enqueue("looks")
    context.detach(token)
    work(shop, run_worker, task_id)
    [inner] = [span for span in spans if span.name == "inner"]
    assert inner.parent_id == runs(spans)[0].span_id
    assert inner.attributes == {"tenant": "blue"}


class Kept(logging.Handler):
    """Keeps records, with the fields of the task."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict[str, Any]] = []
        self.addFilter(logs.TaskFields())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(vars(record))


@pytest.fixture
def kept() -> Iterator[Kept]:
    """Keep everything that is logged below ``app`` and of the engine's events."""
    handler = Kept()
    loggers = [logging.getLogger(name) for name in ("app", "flask_taskengine.events")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    yield handler
    for logger in loggers:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


def test_every_record_of_a_running_task_has_the_ids(shop: Shop, run_worker: RunWorker, spans: list[Seen], kept: Kept) -> None:
    """Trace, span and task are in each record inside the handler, the lines of its events have them too, and they are gone after it."""
    pool = ThreadPoolExecutor(1)

    @shop.engine.task("logs")
    def log(payload: object) -> None:
        logging.getLogger("app.inner").warning("inside")

    task_id = shop.enqueue("logs")
    worker = run_worker(shop, 1, executor_factory=lambda size: pool)
    shop.wait_for(task_id)
    wait_until(lambda: runs(spans))
    pool.submit(logging.getLogger("app").warning, "after").result(10)
    left = pool.submit(lambda: (trace.get_current_span().get_span_context().is_valid, len(context.get_current()))).result(10)
    worker.stop(0)
    [run] = runs(spans)
    ids = {"task_id": task_id, "task_type": "logs", "attempt": 1, "trace_id": f"{run.trace_id:032x}", "span_id": f"{run.span_id:016x}"}
    assert set(ids) == set(names.RECORD_FIELDS)
    said = {record["msg"]: {name: record[name] for name in ids if name in record} for record in kept.records}
    assert said.pop("after") == {}
    assert len(said) == 3
    assert all(fields == ids for fields in said.values()), said
    assert left == (False, 0)


def test_the_logging_instrumentation_finds_the_span(shop: Shop, run_worker: RunWorker, spans: list[Seen], kept: Kept) -> None:
    """``opentelemetry-instrumentation-logging`` writes its own fields; they are the run's."""
    instrumentation = pytest.importorskip("opentelemetry.instrumentation.logging", reason="of the extra test")

    @shop.engine.task("logs")
    def log(payload: object) -> None:
        logging.getLogger("app").warning("inside")

    task_id = shop.enqueue("logs")
    instrumentor = instrumentation.LoggingInstrumentor()
    instrumentor.instrument(tracer_provider=provider(), inject_trace_context=True, enable_log_auto_instrumentation=False)
    try:
        work(shop, run_worker, task_id)
        logging.getLogger("app").warning("after")
    finally:
        instrumentor.uninstrument()
    [run] = runs(spans)
    inside, after = (next(record for record in kept.records if record["msg"] == text) for text in ("inside", "after"))
    assert (inside["otelTraceID"], inside["otelSpanID"]) == (f"{run.trace_id:032x}", f"{run.span_id:016x}")
    assert after["otelTraceID"] == "0"


def test_structlog_finds_the_task(shop: Shop, run_worker: RunWorker, spans: list[Seen]) -> None:
    """By the recipe of the documentation."""
    structlog = pytest.importorskip("structlog", reason="of the extra test")
    said: list[dict[str, Any]] = []

    def keep(logger: Any, method: str, event: dict[str, Any]) -> str:
        said.append(event)
        return ""

    log = structlog.wrap_logger(logging.getLogger("app"), processors=[lambda logger, method, event: event | logs.task_fields(), keep])

    @shop.engine.task("logs")
    def handle(payload: object) -> None:
        log.warning("inside", of="mine")

    task_id = shop.enqueue("logs")
    work(shop, run_worker, task_id)
    log.warning("after")
    [run] = runs(spans)
    assert said == [
        {
            "event": "inside",
            "of": "mine",
            "task_id": task_id,
            "task_type": "logs",
            "attempt": 1,
            "trace_id": f"{run.trace_id:032x}",
            "span_id": f"{run.span_id:016x}",
        },
        {"event": "after"},
    ]


def test_a_handlers_context_variables_end_with_it(shop: Shop, run_worker: RunWorker) -> None:
    """What one task binds, the next one in the same thread does not see."""
    bound: ContextVar[str] = ContextVar("bound", default="nothing")
    seen: list[tuple[str, int]] = []

    @shop.engine.task("binds")
    def bind(payload: object) -> None:
        seen.append((bound.get(), threading.get_ident()))
        bound.set("something")

    ids = [shop.enqueue("binds") for _ in range(3)]
    work(shop, run_worker, *ids, concurrency=1)
    assert [value for value, _ in seen] == ["nothing"] * 3
    assert len({thread for _, thread in seen}) == 1


# --- faults and switches --------------------------------------------------------------------------------------------------


class Raising(SpanProcessor):
    """A processor of the app that fails."""

    on = False

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        if self.on and span.name.startswith("process"):
            raise RuntimeError("of the app's own processor")

    def on_end(self, span: Any) -> None:
        if self.on and span.name.startswith("process"):
            raise RuntimeError("of the app's own processor")


RAISING = Raising()


def test_a_provider_that_fails_changes_nothing(
    shop: Shop, run_worker: RunWorker, spans: list[Seen], caplog: pytest.LogCaptureFixture
) -> None:
    """Tasks end as they would have, and the fault is logged once."""
    if RAISING not in provider()._active_span_processor._span_processors:
        provider().add_span_processor(RAISING)
    RAISING.on = True
    try:
        ids = [shop.enqueue("succeeds") for _ in range(3)]
        work(shop, run_worker, *ids)
    finally:
        RAISING.on = False
    assert [shop.task(task_id).status for task_id in ids] == ["SUCCEEDED"] * 3
    assert sum("tracing failed" in record.getMessage() for record in caplog.records) == 1


def test_a_trace_that_is_not_sampled_stays_so(shop: Shop, run_worker: RunWorker, spans: list[Seen]) -> None:
    """The decision of the request is stored, and holds for the run."""
    unsampled = trace.SpanContext(int("1" * 32, 16), int("2" * 16, 16), is_remote=True, trace_flags=trace.TraceFlags(0))
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(unsampled)))
    task_id = shop.enqueue("succeeds")
    context.detach(token)
    stored = shop.task(task_id).trace_context
    assert stored is not None
    assert stored["traceparent"].startswith("00-" + "1" * 32)
    assert stored["traceparent"].endswith("-00")
    work(shop, run_worker, task_id)
    assert spans == []


def test_two_apps_of_one_engine_trace_for_themselves(make_shop: MakeShop, spans: list[Seen]) -> None:
    """The setting is an app's own: one that is not traced writes no context."""
    traced, plain = make_shop(TASKENGINE_TRACING="child"), make_shop()
    with trace.get_tracer("app").start_as_current_span("request"):
        ids = traced.enqueue("one"), plain.enqueue("one")
    contexts = [traced.task(task_id).trace_context for task_id in ids]
    assert contexts[0] is not None
    assert contexts[1] is None


@pytest.mark.parametrize("value", [True, "parent", 1, ""])
def test_a_wrong_setting_is_refused(make_shop: MakeShop, value: object) -> None:
    """With what to give instead."""
    with pytest.raises(ConfigError, match=r"TASKENGINE_TRACING: .*give False, child or link"):
        make_shop(TASKENGINE_TRACING=value)
