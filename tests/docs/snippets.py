"""Runs the snippets of a Markdown page, in the order in which they stand.

What a block's language says:

- `python`: run in one interpreter that all blocks of the page share. `pycon`: the same, with the expected output.
- `console`: lines that begin with `$ ` are commands; the lines after one, up to the next, are what it must print, where
  `...` stands for anything and white space does not count. Nothing after it: only the exit status counts.
- `sh`, `bash`: each line is a command.
- anything else is not run.

Commands that start with `anarchon`, `celery` or `python` are run, and `export NAME=value` is kept for the rest of the
page. Those in `NOT_RUN` are for the reader's own machine and left out. Any other command is an error.

A comment directly before a block changes what happens to it:

- `<!-- snippet: skip REASON -->`: not run. The reason is required, and the number of skips is limited.
- `<!-- snippet: file NAME -->`: written to a file of the page's directory, which is on Python's path.
- `<!-- snippet: background TEXT -->`: the one command is left running; the page goes on when it has printed TEXT.
- `<!-- snippet: exit N -->`: the last command ends with this status.

Addresses like `redis://any.host:6379/1` and `valkey://any.host:6379/1` are replaced by those of the page's own servers.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import shlex
import socket
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers import ProcessOwner, RedisServer, ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
INTERPRETER = Path(__file__).with_name("interpreter.py")
BLOCK_TIMEOUT_S = 60.0

PYTHON = {"python", "pycon"}
CONSOLE = {"console"}
SHELL = {"bash", "sh"}
ACTIONS = {"background", "exit", "file", "skip"}
RUN = {"anarchon", "celery", "python"}
NOT_RUN = {"docker", "git", "helm", "kubectl", "make", "pip", "redis-server", "systemctl", "uv", "valkey-server"}

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})\s*(?:\{code-block\}\s*)?(?P<language>[\w-]*)\s*$")
DIRECTIVE = re.compile(r"^\s*<!-- snippet: (?P<action>\w+)\s*(?P<argument>.*?)\s*-->\s*$")
ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
ADDRESS = re.compile(r"\b(?P<scheme>redis|valkey)://[\w.-]+(?::6379)?(?![\w.:@-])")


class SnippetError(AssertionError):
    """A snippet did not do what its page says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """One block of a page: its language, its text, where the text begins, and the directive before it."""

    page: Path
    line: int
    language: str
    text: str
    action: str = ""
    argument: str = ""

    @property
    def where(self) -> str:
        """The place in the page."""
        return f"{self.page.name}:{self.line}"


def parse(page: Path) -> list[Snippet]:
    """Return the blocks of a page that are run or have a directive.

    Raises:
        SnippetError: A directive is not understood, lacks what it needs, or stands before no block.
    """
    return [s for s in _blocks(page) if s.action or s.language in PYTHON | CONSOLE | SHELL]


def _blocks(page: Path) -> Iterator[Snippet]:
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), 1))
    action = argument = ""
    for number, line in lines:
        if directive := DIRECTIVE.match(line):
            action, argument = directive["action"], directive["argument"]
            _check(page, number, action, argument)
        elif fence := FENCE.match(line):
            text = []
            for _, inner in lines:
                if re.fullmatch(rf" *`{{{len(fence['fence'])},}}\s*", inner):
                    break
                text.append(inner.removeprefix(fence["indent"]))
            body = textwrap.dedent("\n".join(text)) + "\n"
            language = fence["language"]
            yield Snippet(page=page, line=number + 1, language=language, text=body, action=action, argument=argument)
            action = argument = ""
        elif line.strip() and action:
            raise SnippetError(f"{page.name}:{number}: a block must follow the directive {action!r}")
        elif "<!-- snippet" in line:
            raise SnippetError(f"{page.name}:{number}: not a directive: {line.strip()}")


def _check(page: Path, number: int, action: str, argument: str) -> None:
    if action not in ACTIONS:
        raise SnippetError(f"{page.name}:{number}: {action!r} is none of {', '.join(sorted(ACTIONS))}")
    if not argument or (action == "exit" and not argument.isdecimal()):
        raise SnippetError(
            f"{page.name}:{number}: {action!r} needs {'a number' if action == 'exit' else 'an argument'}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line and what it must print, if anything is said about that."""

    text: str
    expected: str = ""


def commands(snippet: Snippet) -> list[Command]:
    """Return the commands of a console or shell block; a backslash at the end of a line joins it with the next."""
    lines = re.sub(r"\\\n(?:> )?\s*", " ", snippet.text).splitlines()
    if snippet.language in SHELL:
        return [Command(text=line.strip()) for line in lines if line.strip() and not line.lstrip().startswith("#")]
    found: list[Command] = []
    for line in lines:
        if line.startswith("$ "):
            found.append(Command(text=line[2:].strip()))
        elif found:
            last = found.pop()
            found.append(Command(text=last.text, expected=f"{last.expected}{line}\n"))
        elif line.strip():
            raise SnippetError(f"{snippet.where}: output before the first command: {line}")
    return found


def same_output(expected: str, got: str) -> bool:
    """Say whether the output is what was expected, loosely."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return not expected.strip() or doctest.OutputChecker().check_output(expected.strip(), got.strip(), flags)


class PageRunner:
    """Runs the snippets of one page in a directory of its own."""

    def __init__(self, directory: Path, processes: ProcessOwner) -> None:
        self.directory = directory
        self._processes = processes
        self._servers: dict[str, RedisServer] = {}
        self._interpreter: _Interpreter | None = None
        self.env = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(directory),
            "COLUMNS": "120",
        }

    def run(self, page: Path) -> int:
        """Run the page's snippets in order and return how many were run.

        Raises:
            SnippetError: One of them did not do what the page says.
        """
        done = 0
        for snippet in parse(page):
            if snippet.action == "skip":
                continue
            if snippet.action == "file":
                self._write(snippet)
            elif snippet.language in PYTHON:
                self._python(snippet)
            elif snippet.language in CONSOLE | SHELL:
                self._commands(snippet)
            else:
                raise SnippetError(f"{snippet.where}: {snippet.action!r} does not go with {snippet.language!r}")
            done += 1
        return done

    def close(self) -> None:
        """End the servers; the processes belong to their owner."""
        if self._interpreter is not None:
            self._interpreter.close()
        for server in self._servers.values():
            server.kill()

    def _localize(self, text: str) -> str:
        return ADDRESS.sub(lambda match: f"{match['scheme']}://127.0.0.1:{self._server(match['scheme']).port}", text)

    def _server(self, scheme: str) -> RedisServer:
        if scheme not in self._servers:
            kind = {"redis": RedisServer, "valkey": ValkeyServer}[scheme]
            self._servers[scheme] = kind(self.directory / f".{scheme}").start()
        return self._servers[scheme]

    def _write(self, snippet: Snippet) -> None:
        target = (self.directory / snippet.argument).resolve()
        if not target.is_relative_to(self.directory.resolve()):
            raise SnippetError(f"{snippet.where}: {snippet.argument} is outside of the page's directory")
        target.parent.mkdir(parents=True, exist_ok=True)
        text = self._localize(snippet.text)
        if snippet.language == "python":
            compile(text, str(target), "exec", dont_inherit=True)
        target.write_text(text, encoding="utf-8")

    def _python(self, snippet: Snippet) -> None:
        if snippet.action:
            raise SnippetError(f"{snippet.where}: {snippet.action!r} does not go with {snippet.language!r}")
        if self._interpreter is None:
            self._interpreter = _Interpreter(self._processes, self.directory, self.env)
        error = self._interpreter.ask(snippet, self._localize(snippet.text))
        if error:
            raise SnippetError(f"{snippet.where}:\n{error}")

    def _commands(self, snippet: Snippet) -> None:
        found = commands(snippet)
        if snippet.action == "background" and len(found) != 1:
            raise SnippetError(f"{snippet.where}: 'background' takes a block of one command")
        for command in found:
            words = [word for word in shlex.split(command.text, comments=True) if not ASSIGNMENT.match(word)]
            name = words[0] if words else ""
            if name == "export":
                self._export(self._localize(command.text))
            elif name in RUN:
                self._command(snippet, command, last=command is found[-1])
            elif name not in NOT_RUN:
                raise SnippetError(f"{snippet.where}: {name!r} is not a command that snippets run: {command.text}")

    def _export(self, text: str) -> None:
        for word in shlex.split(text)[1:]:
            name, _, value = word.partition("=")
            self.env[name] = value

    def _command(self, snippet: Snippet, command: Command, *, last: bool) -> None:
        script = f"set -o pipefail; {self._localize(command.text)}"
        name = f"line-{snippet.line}"
        process = self._processes.start("bash", "-c", script, name=name, env=self.env, cwd=self.directory)
        if snippet.action == "background":
            process.wait_for_output(snippet.argument, BLOCK_TIMEOUT_S)
            return
        status = process.wait(BLOCK_TIMEOUT_S)
        wanted = int(snippet.argument) if last and snippet.action == "exit" else 0
        if status != wanted:
            raise SnippetError(
                f"{snippet.where}: `{command.text}` ended with {status} instead of {wanted}:\n{process.output()}"
            )
        if not same_output(command.expected, process.output()):
            raise SnippetError(
                f"{snippet.where}: `{command.text}` printed\n{process.output()}\ninstead of\n{command.expected}"
            )


class _Interpreter:
    """The Python process in which the blocks of a page run."""

    def __init__(self, processes: ProcessOwner, directory: Path, env: dict[str, str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(BLOCK_TIMEOUT_S)
            port = str(listener.getsockname()[1])
            self._process = processes.python("-u", INTERPRETER, port, name="snippets", env=env, cwd=directory)
            self._connection, _ = listener.accept()
        self._connection.settimeout(BLOCK_TIMEOUT_S)
        self._stream = self._connection.makefile("rw", encoding="utf-8")

    def ask(self, snippet: Snippet, text: str) -> str:
        """Run a block; return what went wrong, or nothing."""
        request = {"page": str(snippet.page), "line": snippet.line, "language": snippet.language, "text": text}
        try:
            self._stream.write(json.dumps(request) + "\n")
            self._stream.flush()
            reply = self._stream.readline()
        except TimeoutError:
            return f"still running after {BLOCK_TIMEOUT_S:g} s; it has printed\n{self._process.tail()}"
        if not reply:
            return f"the interpreter ended; it had printed\n{self._process.tail()}"
        return str(json.loads(reply))

    def close(self) -> None:
        """Let go of the process."""
        self._connection.close()
        self._stream.close()
