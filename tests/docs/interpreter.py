"""The process in which the Python blocks of a page run; it answers each block with what went wrong, or nothing."""

from __future__ import annotations

import doctest
import io
import json
import socket
import sys
import traceback
import types


def run_python(text: str, page: str, line: int, names: dict[str, object]) -> str:
    """Run a block as if it stood at its line of the page, so that tracebacks show the page."""
    try:
        exec(compile("\n" * (line - 1) + text, page, "exec", dont_inherit=True), names)
    except BaseException:  # noqa: BLE001  # also SystemExit: a block does not end the page
        return traceback.format_exc()
    return ""


def run_pycon(text: str, page: str, line: int, names: dict[str, object]) -> str:
    """Run a block of prompts and compare what it prints."""
    report = io.StringIO()
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    test = doctest.DocTestParser().get_doctest(text, names, "snippet", page, line - 1)
    test.globs = names  # the parser made a copy
    runner.run(test, out=report.write, clear_globs=False)
    return report.getvalue()


def main() -> None:
    """Serve the runner until it lets go."""
    page_module = types.ModuleType("__main__")
    sys.modules["__main__"] = page_module
    kinds = {"python": run_python, "pycon": run_pycon}
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
        stream = connection.makefile("rw", encoding="utf-8")
        for line in stream:
            request = json.loads(line)
            error = kinds[request["language"]](request["text"], request["page"], request["line"], vars(page_module))
            stream.write(json.dumps(error) + "\n")
            stream.flush()


if __name__ == "__main__":
    main()
