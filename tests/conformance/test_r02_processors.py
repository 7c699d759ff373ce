"""R2: a worker gives each task to the processor of its type."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flask_taskengine import TaskContext, TaskProcessor, TaskStatus, current_task
from tests.support.shop import Shop
from tests.support.shop_fixtures import RunWorker


def twice(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate as hosts do: whatever it is called with is passed on."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> list[Any]:
        return [function(*args, **kwargs), function(*args, **kwargs)]

    return inner


class Greeter(TaskProcessor[dict[str, str]]):
    """The class form, with state of its own."""

    type = "greet"
    store_result = True

    def __init__(self, words: str) -> None:
        self.words = words

    def process(self, payload: dict[str, str], context: TaskContext) -> str:
        return f"{self.words}, {payload['name']} ({context.attempt})"


def test_r02_functions_and_objects_process_their_types(shop: Shop, run_worker: RunWorker) -> None:
    """Each task reaches the processor of its type, with its payload, and the context where it is asked for."""

    @shop.engine.task("plain", store_result=True)
    def plain(payload: Any) -> Any:
        return ["plain", payload]

    @shop.engine.task("context", store_result=True)
    def contextual(payload: Any, context: TaskContext) -> Any:
        return [context.task_id, context.type, context.attempt, context.token]

    shop.engine.register(Greeter("hello"))
    ids = [shop.enqueue("plain", {"n": 1}), shop.enqueue("context"), shop.enqueue("greet", {"name": "Ada"})]
    run_worker(shop)
    shop.wait_for_all(ids)
    assert [shop.task(task_id).result for task_id in ids] == [["plain", {"n": 1}], [ids[1], "context", 1, 1], "hello, Ada (1)"]


def test_r02_decorated_processors_keep_working(shop: Shop, run_worker: RunWorker) -> None:
    """A decorator below or above the engine's is called, in tasks and in plain calls."""

    @shop.engine.task("below", store_result=True)
    @twice
    def below(payload: int) -> int:
        return payload + 1

    @twice
    @shop.engine.task("above", store_result=True)
    def above(payload: int, context: TaskContext) -> int:
        return payload + context.attempt

    shop.engine.task("partial", store_result=True)(functools.partial(lambda factor, payload: factor * payload, 3))
    ids = [shop.enqueue("below", 1), shop.enqueue("above", 1), shop.enqueue("partial", 2)]
    run_worker(shop)
    shop.wait_for_all(ids)
    assert [shop.task(task_id).result for task_id in ids] == [[2, 2], 2, 6]
    assert below(4) == [5, 5]


def test_r02_current_task_is_the_task_that_runs(shop: Shop, run_worker: RunWorker) -> None:
    """Code that is not given the context finds that of its own thread's attempt, however many run beside it."""

    @shop.engine.task("who", store_result=True)
    def who(payload: Any) -> int:
        return current_task.task_id

    ids = shop.enqueue_many(*["who"] * 30)
    run_worker(shop, 8)
    shop.wait_for_all(ids)
    assert [shop.task(task_id).result for task_id in ids] == ids


def test_r02_a_processor_that_can_not_import_its_needs_fails(shop: Shop, run_worker: RunWorker) -> None:
    """An ImportError inside a handler is a failure like any other, not limbo (faults 19)."""

    @shop.engine.task("import")
    def importing(payload: Any) -> None:
        import no_such_module_anywhere  # type: ignore[import-not-found]  # noqa: F401

    task_id = shop.enqueue("import", max_attempts=1)
    run_worker(shop)
    task = shop.wait_for(task_id)
    assert task.status is TaskStatus.DEAD
    assert task.last_error is not None
    assert task.last_error.startswith("ModuleNotFoundError: No module named 'no_such_module_anywhere'")


def test_r02_a_type_is_processed_with_an_engine_that_was_made_first(shop: Shop, run_worker: RunWorker) -> None:
    """A processor that is registered after ``init_app`` counts; what a handler enqueues runs too."""

    @shop.engine.task("second")
    def second(payload: Any) -> None:
        """Do nothing."""

    @shop.engine.task("first", store_result=True)
    def first(payload: Any) -> int:
        return int(shop.engine.enqueue("second").id)

    run_worker(shop)
    first_task = shop.wait_for(shop.enqueue("first"))
    assert shop.wait_for(first_task.result).status is TaskStatus.SUCCEEDED
