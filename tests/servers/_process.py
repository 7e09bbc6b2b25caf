"""Subprocesses that are owned: started in a group of their own, and ended with it whatever happens."""

from __future__ import annotations

import os
import signal as signals
import subprocess
import sys
from typing import TYPE_CHECKING, Self

from tests.servers._ports import free_port
from tests.servers._waiting import poll_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 10.0
TAIL_CHARACTERS = 4000


class OwnedProcess:
    """One subprocess with its children, as a process group; its output goes to a file."""

    def __init__(
        self,
        args: Sequence[str | Path],
        *,
        name: str,
        output: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.output_file = output
        with output.open("ab") as out:
            self._popen = subprocess.Popen(
                [str(arg) for arg in args],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
            )
        self.pid = self._popen.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while the process runs."""
        return self._popen.poll()

    @property
    def running(self) -> bool:
        """Whether the process (not only a child of it) is there. A paused one is."""
        return self.returncode is None

    def output(self) -> str:
        """Return everything the group wrote so far, standard output and error together."""
        return self.output_file.read_text(encoding="utf-8", errors="replace")

    def tail(self) -> str:
        """Return the end of the output."""
        return self.output()[-TAIL_CHARACTERS:]

    def wait_for_output(self, text: str, timeout: float = START_TIMEOUT_S) -> None:
        """Return once the text stands in the output.

        Raises:
            AssertionError: It did not come in time, or the process ended without it.
        """

        def there() -> bool:
            ended = not self.running
            if text in self.output():
                return True
            if ended:
                raise AssertionError(f"{self.name} ended with {self.returncode} before {text!r}:\n{self.tail()}")
            return False

        poll_until(there, timeout, what=lambda: f"{text!r} in the output of {self.name}:\n{self.tail()}\n")

    def signal(self, number: signals.Signals) -> None:
        """Send a signal to the process alone."""
        self._popen.send_signal(number)

    def signal_group(self, number: signals.Signals) -> None:
        """Send a signal to the process and all its children. Nothing happens when all have ended."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return
        except PermissionError:  # macOS says this of a group of which only zombies are left
            if self.running:
                raise

    def pause(self) -> None:
        """Stop the whole group with SIGSTOP: connections stay open and nothing answers."""
        self.signal_group(signals.SIGSTOP)

    def resume(self) -> None:
        """Let a paused group go on."""
        self.signal_group(signals.SIGCONT)

    def wait(self, timeout: float = STOP_TIMEOUT_S) -> int:
        """Return the exit status once the process has ended.

        Raises:
            AssertionError: It did not end in time.
        """
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} (pid {self.pid}) still runs after {timeout:g} s:\n{self.tail()}"
            ) from None

    def terminate(self, timeout: float = STOP_TIMEOUT_S) -> int:
        """Ask the process to end with SIGTERM and return its exit status."""
        self.signal(signals.SIGTERM)
        return self.wait(timeout)

    def kill(self) -> int:
        """End the whole group with SIGKILL and return the exit status."""
        self.signal_group(signals.SIGKILL)
        return self.wait()


class ProcessOwner:
    """Starts subprocesses and ends every one of them, with its children, in `close`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.started: list[OwnedProcess] = []

    def start(
        self,
        *args: str | Path,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> OwnedProcess:
        """Start a subprocess and return it.

        Args:
            args: The command.
            name: Stands in reports; the command's own name by default.
            env: Variables to set on top of those of this process.
            cwd: The directory to start in.
        """
        name = name or str(args[0]).rsplit("/", 1)[-1]
        output = self.directory / f"{len(self.started)}-{name}.log"
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        process = OwnedProcess(args, name=name, output=output, env=environment, cwd=cwd)
        self.started.append(process)
        return process

    def python(
        self,
        *args: str | Path,
        name: str = "python",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> OwnedProcess:
        """Start the interpreter that runs the tests with these arguments."""
        return self.start(sys.executable, *args, name=name, env=env, cwd=cwd)

    def close(self) -> None:
        """End whatever still runs, children of ended processes included."""
        for process in self.started:
            process.signal_group(signals.SIGKILL)
        for process in self.started:
            process.wait()


class ServerProcess:
    """A server on 127.0.0.1 that a test may kill, pause and start again at the same port."""

    name = "server"

    def __init__(self, directory: Path, *, port: int | None = None) -> None:
        self.directory = directory
        self.port = free_port() if port is None else port
        self._port_is_ours = port is None
        self._process: OwnedProcess | None = None

    def command(self) -> list[str | Path]:
        """Return the command that runs the server in the foreground."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Say whether the server answers."""
        raise NotImplementedError

    @property
    def process(self) -> OwnedProcess:
        """The running process."""
        if self._process is None:
            raise AssertionError(f"{self.name} was not started")
        return self._process

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.running

    def start(self) -> Self:
        """Start the server unless it runs, and return once it answers."""
        if self.running:
            return self
        self.directory.mkdir(parents=True, exist_ok=True)
        for attempts_left in (2, 1, 0):
            if self._started():
                self._port_is_ours = False  # from now on the address is known to clients
                return self
            if not (self._port_is_ours and attempts_left):
                break
            self.port = free_port()  # somebody took it between the probe and the start
        raise AssertionError(f"{self.name} did not start on port {self.port}:\n{self.process.tail()}")

    def _started(self) -> bool:
        self._process = process = OwnedProcess(
            self.command(), name=self.name, output=self.directory / f"{self.name}.log", cwd=self.directory
        )
        try:
            return poll_until(lambda: not process.running or self.ready(), START_TIMEOUT_S) and process.running
        except BaseException:
            process.kill()
            raise

    def stop(self) -> None:
        """End the server in an orderly way; with force when it does not obey. Fine when it does not run."""
        if not self.running:
            return
        self.process.resume()
        try:
            self.process.terminate()
        except AssertionError:
            self.kill()

    def kill(self) -> None:
        """End the server with SIGKILL: what it had not written is gone. Fine when it does not run."""
        if self._process is not None:
            self._process.kill()

    def restart(self) -> None:
        """Stop the server and start it again at the same port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop the process with SIGSTOP: connections stay open and nothing answers."""
        self.process.pause()

    def resume(self) -> None:
        """Let a paused server go on."""
        self.process.resume()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
