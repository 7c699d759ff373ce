"""The supervisor: what becomes of tasks when processes die, hang or are stopped."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from flask_taskengine import TaskStatus
from tests.support.waiting import wait_until
from tests.support.worker import WorkerProcess

from .conftest import Scene, children

ENDED = (TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.DEAD, TaskStatus.CANCELLED)


def test_r12_killed_child_is_replaced_and_its_task_runs_again_at_once(scene: Scene) -> None:
    """A child that is killed costs its task one attempt and a second or two, not a lease."""
    worker = scene.worker(LEASE=60, HEARTBEAT_INTERVAL=1)
    task_id = scene.enqueue("effect", {"says": scene.path("said"), "until": scene.path("go")})
    (first,) = scene.said("said")
    os.kill(int(first), signal.SIGKILL)
    second = scene.said("said", 2, timeout=5)[1]
    scene.let_go("go")
    task = scene.wait_for(task_id, *ENDED)
    assert (task.status, task.attempts) == (TaskStatus.SUCCEEDED, 2)
    assert scene.effects() == [f"effect by {second}"]
    assert worker.terminate() == 0
    assert f"process {first} was killed by SIGKILL" in worker.log


def test_r12_task_that_kills_its_process_ends_dead_with_an_error_that_says_so(scene: Scene) -> None:
    """A poison pill is tried max_attempts times, and the last error says how its process died."""
    scene.worker()
    task_id = scene.enqueue("kill itself", {"says": scene.path("said")})
    task = scene.wait_for(task_id, *ENDED, timeout=20)
    assert (task.status, task.attempts) == (TaskStatus.DEAD, 3)
    assert "was killed by SIGKILL" in (task.last_error or "")
    assert len(scene.said("said")) == 3


def test_r12_exit_code_of_a_dead_process_is_told(sqlite_scene: Scene) -> None:
    """A handler that ends its process leaves the exit code in the task's error."""
    sqlite_scene.worker()
    task_id = sqlite_scene.enqueue("exit", {"code": 7}, max_attempts=1)
    task = sqlite_scene.wait_for(task_id, *ENDED)
    assert task.status is TaskStatus.DEAD
    assert "exited with code 7" in (task.last_error or "")


def test_r12_child_of_a_killed_supervisor_ends_itself(scene: Scene) -> None:
    """A child does not run on without the one that beats for it; what does not end in time is released uncounted."""
    worker = scene.worker(SHUTDOWN_TIMEOUT=0.5)
    task_id = scene.enqueue("effect", {"says": scene.path("said"), "until": scene.path("go")})
    (first,) = scene.said("said")
    os.kill(worker.pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(int(first)) or psutil.Process(int(first)).status() == psutil.STATUS_ZOMBIE, 10)
    scene.worker()
    scene.said("said", 2)
    scene.let_go("go")
    task = scene.wait_for(task_id, *ENDED)
    assert (task.status, task.attempts, task.claims) == (TaskStatus.SUCCEEDED, 1, 2)


def test_r12_tasks_of_a_machine_that_failed_run_elsewhere_after_the_lease(scene: Scene) -> None:
    """Where nobody is left who could release them, another worker takes the tasks once the lease is over."""
    other = scene.worker()
    other.wait_for_log("wake-ups by")
    (idle,) = children(other)
    idle.suspend()
    worker = scene.worker()
    task_id = scene.enqueue("effect", {"says": scene.path("said"), "until": scene.path("go")})
    (first,) = scene.said("said")
    assert int(first) in [child.pid for child in children(worker)]
    worker.kill()
    idle.resume()
    scene.let_go("go")
    second = scene.said("said", 2)[1]
    task = scene.wait_for(task_id, *ENDED)
    assert (task.status, task.attempts) == (TaskStatus.SUCCEEDED, 2)
    assert scene.effects() == [f"effect by {second}"]


def test_r12_handler_that_holds_the_gil_for_two_leases_loses_nothing(scene: Scene) -> None:
    """The supervisor beats for a child in which no thread can run, so no other worker takes its task."""
    scene.worker()
    scene.worker()
    task_id = scene.enqueue("hold the GIL", {"says": scene.path("said"), "seconds": 5})
    task = scene.wait_for(task_id, *ENDED)
    assert (task.status, task.attempts, task.claims) == (TaskStatus.SUCCEEDED, 1, 1)


def test_r12_worker_that_was_frozen_beyond_its_lease_can_not_write(scene: Scene) -> None:
    """The task of a stopped worker runs elsewhere; when it goes on, its writes are refused, it joins again and carries on."""
    frozen = scene.worker()
    task_id = scene.enqueue("effect", {"says": scene.path("said"), "until": scene.path("go")})
    scene.said("said")
    freeze(scene, frozen)
    other = scene.worker()
    second = scene.said("said", 2)[1]
    scene.let_go("go")
    task = scene.wait_for(task_id, *ENDED)
    assert other.terminate() == 0
    os.killpg(frozen.pid, signal.SIGCONT)
    frozen.wait_for_log("has lost its lease")
    later = scene.enqueue("effect", {"says": scene.path("said"), "note": "later"})
    scene.wait_for(later, TaskStatus.SUCCEEDED)
    assert frozen.terminate() == 0
    assert (task.status, task.attempts) == (TaskStatus.SUCCEEDED, 2)
    assert scene.task(task_id) == task
    assert [note.partition(" by ")[0] for note in scene.effects()] == ["effect", "later"]
    assert scene.effects()[0] == f"effect by {second}"


def test_r22_child_that_hangs_past_a_deadline_is_killed(sqlite_scene: Scene) -> None:
    """A handler that lets no thread run, and so can not be timed out, is ended with its process, and the attempt counts."""
    sqlite_scene.worker(DEFAULT_TIMEOUT=1)
    task_id = sqlite_scene.enqueue("hold the GIL", {"says": sqlite_scene.path("said"), "seconds": 120}, max_attempts=1)
    task = sqlite_scene.wait_for(task_id, *ENDED)
    assert task.status is TaskStatus.DEAD
    assert "killed for overrunning its deadline" in (task.last_error or "")
    sqlite_scene.wait_for(sqlite_scene.enqueue("noop"), TaskStatus.SUCCEEDED)


def freeze(scene: Scene, worker: WorkerProcess) -> None:
    """Stop all processes of a worker, but not in the middle of a write: on SQLite nobody else could then write either."""

    def stopped_outside_of_a_write() -> bool:
        os.killpg(worker.pid, signal.SIGSTOP)
        try:
            with scene.app.app_context(), scene.db.engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA busy_timeout = 200")
                connection.exec_driver_sql("BEGIN IMMEDIATE")
        except sa.exc.OperationalError:
            os.killpg(worker.pid, signal.SIGCONT)
            return False
        return True

    if scene.url.startswith("sqlite"):
        wait_until(stopped_outside_of_a_write)
    else:
        os.killpg(worker.pid, signal.SIGSTOP)


# --- stop ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_r4_signal_lets_running_tasks_end(scene: Scene, number: signal.Signals) -> None:
    """A worker that is told to stop claims nothing more, lets running tasks end, and exits with 0."""
    worker = scene.worker("--concurrency", "1", SHUTDOWN_TIMEOUT=30)
    task_id = scene.enqueue("effect", {"says": scene.path("said"), "until": scene.path("go")})
    scene.said("said")
    worker.wait_for_log("wake-ups by")
    (child,) = children(worker)
    threads = child.num_threads()
    worker.send(number)
    worker.wait_for_log(f"{number.name}: running tasks have 30 s to end")
    wait_until(lambda: child.num_threads() < threads, what="the end of the threads that look for work")
    late = scene.enqueue("noop")
    scene.let_go("go")
    assert worker.wait() == 0
    assert scene.task(task_id).status is TaskStatus.SUCCEEDED
    assert scene.task(late).status is TaskStatus.PENDING


def test_r4_ctrl_c_for_the_whole_group_is_one_signal(sqlite_scene: Scene) -> None:
    """Ctrl-C and service managers reach the children too: that is no second signal."""
    worker = sqlite_scene.worker("--processes", "2")
    task_id = sqlite_scene.enqueue("effect", {"says": sqlite_scene.path("said"), "until": sqlite_scene.path("go")})
    sqlite_scene.said("said")
    os.killpg(worker.pid, signal.SIGINT)
    worker.wait_for_log("SIGINT: running tasks have")
    sqlite_scene.let_go("go")
    assert worker.wait() == 0
    assert sqlite_scene.task(task_id).status is TaskStatus.SUCCEEDED


def test_r4_tasks_beyond_the_shutdown_timeout_are_released_uncounted(scene: Scene) -> None:
    """What does not end in time is interrupted; the attempt does not count and the task is due at once."""
    worker = scene.worker(SHUTDOWN_TIMEOUT=0.5)
    task_id = scene.enqueue("effect", {"says": scene.path("said"), "until": scene.path("go")})
    scene.said("said")
    assert worker.terminate() == 0
    task = scene.task(task_id)
    assert (task.status, task.attempts, task.claims) == (TaskStatus.PENDING, 0, 1)
    scene.let_go("go")
    scene.worker("--drain").wait()
    assert scene.task(task_id).status is TaskStatus.SUCCEEDED


def test_r4_all_tasks_stop_within_one_grace_period(scene: Scene) -> None:
    """Threads that do not come back are given up together, not one after the other (faults 107)."""
    worker = scene.worker(SHUTDOWN_TIMEOUT=0.5, CONCURRENCY=8)
    ids = [scene.enqueue("hang", {"says": scene.path("said"), "seconds": 60}) for _ in range(8)]
    scene.said("said", 8)
    assert worker.terminate(timeout=8) == 0
    assert [(scene.task(i).status, scene.task(i).attempts) for i in ids] == [(TaskStatus.PENDING, 0)] * 8


def test_r4_second_signal_interrupts_at_once(scene: Scene) -> None:
    """A second signal does not wait for the grace period; tasks are released uncounted."""
    worker = scene.worker(SHUTDOWN_TIMEOUT=300)
    task_id = scene.enqueue("effect", {"says": scene.path("said"), "until": scene.path("go")})
    scene.said("said")
    worker.send(signal.SIGTERM)
    worker.wait_for_log("running tasks have")
    assert worker.terminate(timeout=10) == 0
    task = scene.task(task_id)
    assert (task.status, task.attempts) == (TaskStatus.PENDING, 0)


def test_r4_third_signal_kills(sqlite_scene: Scene) -> None:
    """A third signal ends even a process in which no thread can run."""
    worker = sqlite_scene.worker(SHUTDOWN_TIMEOUT=300)
    sqlite_scene.enqueue("hold the GIL", {"says": sqlite_scene.path("said"), "seconds": 120})
    sqlite_scene.said("said")
    for expected in ("running tasks have", "a third signal kills"):
        worker.send(signal.SIGTERM)
        worker.wait_for_log(expected)
    assert worker.terminate(timeout=10) == 128 + signal.SIGTERM


# --- replacement --------------------------------------------------------------------------------------------------------


def test_r4_child_that_is_stopped_by_hand_is_replaced(sqlite_scene: Scene) -> None:
    """Stopping one child gracefully costs nothing: its task ends there, the next one runs in its successor."""
    worker = sqlite_scene.worker()
    task_id = sqlite_scene.enqueue("effect", {"says": sqlite_scene.path("said"), "until": sqlite_scene.path("go")})
    (first,) = sqlite_scene.said("said")
    os.kill(int(first), signal.SIGTERM)
    sqlite_scene.let_go("go")
    assert sqlite_scene.wait_for(task_id, *ENDED).attempts == 1
    sqlite_scene.enqueue("effect", {"says": sqlite_scene.path("said")})
    assert sqlite_scene.said("said", 2)[1] != first
    assert worker.terminate() == 0


def test_r4_child_is_replaced_after_max_tasks_and_drops_none(scene: Scene) -> None:
    """A worn-out child ends its tasks while its successor works; no task is lost or counted twice."""
    worker = scene.worker("--max-tasks", "2", "--concurrency", "2")
    says = {"says": scene.path("said"), "until": scene.path("go")}
    ids = [scene.enqueue("effect", says) for _ in range(8)]
    assert len(set(scene.said("said", 8))) == 4, "a successor works while its predecessor's tasks still run"
    scene.let_go("go")
    assert {(scene.wait_for(i, *ENDED).status, scene.task(i).attempts) for i in ids} == {(TaskStatus.SUCCEEDED, 1)}
    assert len(scene.effects()) == 8
    assert worker.terminate() == 0
    assert "it has run" in worker.log


def test_r4_child_is_replaced_when_it_has_grown(sqlite_scene: Scene) -> None:
    """A leak ends with the process that has it."""
    worker = sqlite_scene.worker("--max-memory", "300MiB")
    sqlite_scene.wait_for(sqlite_scene.enqueue("grow", {"bytes": 400 * 2**20}), TaskStatus.SUCCEEDED)
    worker.wait_for_log(r"it has grown to \d+ MiB")
    sqlite_scene.wait_for(sqlite_scene.enqueue("noop"), TaskStatus.SUCCEEDED)
    assert worker.terminate() == 0


def test_r22_child_is_replaced_when_too_many_threads_were_given_up(sqlite_scene: Scene) -> None:
    """Each thread that never comes back is replaced, and when as many as there are slots have gone, so is the process."""
    worker = sqlite_scene.worker("--concurrency", "2", DEFAULT_TIMEOUT=0.3)
    ids = [sqlite_scene.enqueue("hang", {"says": sqlite_scene.path("said"), "seconds": 600}, max_attempts=1) for _ in range(2)]
    for task_id in ids:
        assert "timed out" in (sqlite_scene.wait_for(task_id, *ENDED).last_error or "")
    worker.wait_for_log("2 of its threads did not come back")
    first = sqlite_scene.said("said")[0]
    wait_until(lambda: int(first) not in [child.pid for child in children(worker)])
    sqlite_scene.wait_for(sqlite_scene.enqueue("noop"), TaskStatus.SUCCEEDED)
    assert worker.terminate() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="adoption can be asked for on Linux only")
def test_r4_supervisor_buries_strangers(sqlite_scene: Scene) -> None:
    """As process 1 of a container, here as its stand-in, the supervisor adopts what tasks leave behind, and buries it."""
    worker = sqlite_scene.worker("--max-tasks", "1", SUPERVISED_ADOPTS=1)
    sqlite_scene.enqueue("leave a zombie", {"says": sqlite_scene.path("said"), "until": sqlite_scene.path("go")})
    (orphan,) = sqlite_scene.said("said")
    wait_until(lambda: psutil.Process(int(orphan)).ppid() == worker.pid)
    sqlite_scene.let_go("go")
    wait_until(lambda: not psutil.pid_exists(int(orphan)))
    assert worker.terminate() == 0


# --- drain and start ----------------------------------------------------------------------------------------------------


def test_r4_drain_ends_when_nothing_is_due(scene: Scene) -> None:
    """A worker that drains also runs what fails and is due again at once, leaves what is due later, and exits with 0."""
    ids = [scene.enqueue("effect", {"says": scene.path("said")}) for _ in range(20)]
    poison = scene.enqueue("exit", {"code": 1}, max_attempts=2)
    with scene.app.app_context():
        later = scene.engine.enqueue_after("noop", None, "1h").id
        scene.db.session.commit()
    assert scene.worker("--drain", "--processes", "2").wait() == 0
    assert {scene.task(i).status for i in ids} == {TaskStatus.SUCCEEDED}
    assert scene.task(poison).status in (TaskStatus.DEAD, TaskStatus.PENDING)
    assert scene.task(later).status is TaskStatus.PENDING


def test_r4_start_line_says_what_the_worker_is(sqlite_scene: Scene) -> None:
    """One line names node, process, database without its password, types, concurrency and how wake-ups come."""
    worker = sqlite_scene.worker("--node-id", "web-1", "--types", "noop,effect", "--concurrency", "3")
    line = worker.wait_for_log(r"worker web-1 .*$").group()
    assert f"(pid {worker.pid})" in line
    assert "effect, noop; 3 tasks at once; wake-ups by" in line
    assert worker.terminate() == 0


def test_r4_worker_refuses_what_it_can_not_run(sqlite_scene: Scene, tmp_path: Path) -> None:
    """What is wrong with the deployment is said at once, with its remedy, and the exit code is not 0."""
    for url, env, said in [
        (f"sqlite:///{tmp_path / 'new.sqlite'}", {}, "run `flask taskengine migrate`"),
        ("sqlite://", {}, "in memory"),
        (sqlite_scene.url, {"FLASK_TASKENGINE_ENABLED": "false"}, "TASKENGINE_ENABLED"),
    ]:
        worker = sqlite_scene._start_worker("tests.functional.supervised:create_app", url=url, env=env)
        assert worker.wait() == 1
        assert said in worker.log
    worker = sqlite_scene.worker("--types", "nope")
    assert worker.wait() == 1
    assert "no processor for nope" in worker.log
