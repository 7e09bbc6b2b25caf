"""Every snippet of the README and the docs does what its page says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs.snippets import ROOT, PageRunner, SnippetError, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.servers import ProcessOwner

MAX_SKIPS = 8
PAGES = [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)]


@pytest.fixture
def runner(tmp_path: Path, processes: ProcessOwner) -> Iterator[PageRunner]:
    """A runner with an empty directory."""
    directory = tmp_path / "page"
    directory.mkdir()
    page_runner = PageRunner(directory, processes)
    yield page_runner
    page_runner.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_snippets_of(page: Path, runner: PageRunner) -> None:
    """The snippets of the page run, in order, as they stand."""
    runner.run(page)


def test_few_snippets_are_skipped() -> None:
    """A skip says why, in words, and there are not many."""
    skipped = [snippet for page in PAGES for snippet in parse(page) if snippet.action == "skip"]
    assert [s.where for s in skipped if len(s.argument.split()) < 3] == []
    assert len(skipped) <= MAX_SKIPS, [s.where for s in skipped]


class TestRunner:
    """The runner itself notices a wrong snippet."""

    @pytest.fixture
    def run(self, runner: PageRunner, tmp_path: Path) -> Callable[[str], int]:
        """Run a page that is given as text."""

        def run_text(text: str) -> int:
            page = tmp_path / "page.md"
            page.write_text(text, encoding="utf-8")
            return runner.run(page)

        return run_text

    def test_python_blocks_share_a_namespace(self, run: Callable[[str], int]) -> None:
        """What one block defines, the next one has."""
        assert run("```python\nx = 1\n```\ntext\n```pycon\n>>> x + 1\n2\n```\n```python\nassert x == 1\n```\n") == 3

    def test_a_wrong_python_block_is_told_with_its_line(self, run: Callable[[str], int]) -> None:
        """The error has the page's own line numbers."""
        with pytest.raises(SnippetError, match=r'page.md", line 4, in <module>\n(.*\n)*NameError'):
            run("# Title\n\n```python\nnothing\n```\n")

    def test_wrong_prompt_output_is_told(self, run: Callable[[str], int]) -> None:
        """A value that differs from the page's is an error."""
        with pytest.raises(SnippetError, match=r"Expected:\s+3\s+Got:\s+2"):
            run("```pycon\n>>> 1 + 1\n3\n```\n")

    def test_an_exit_does_not_end_the_page_quietly(self, run: Callable[[str], int]) -> None:
        """Leaving the interpreter is an error too."""
        with pytest.raises(SnippetError, match="SystemExit"):
            run("```python\nimport sys; sys.exit(0)\n```\n")

    def test_console_output_is_compared_loosely(self, run: Callable[[str], int]) -> None:
        """An ellipsis stands for anything, white space does not count."""
        assert run('```console\n$ python -c \'print("a  b"); print("c d")\'\na b\nc ...\n```\n') == 1

    def test_wrong_console_output_is_told(self, run: Callable[[str], int]) -> None:
        """What was printed and what was expected stand in the error."""
        with pytest.raises(SnippetError, match=r"printed\na\n\ninstead of\nb"):
            run("```console\n$ python -c 'print(\"a\")'\nb\n```\n")

    def test_a_failing_command_is_told(self, run: Callable[[str], int]) -> None:
        """A command must end with 0, or with what the page says."""
        with pytest.raises(SnippetError, match="ended with 3 instead of 0"):
            run("```sh\npython -c 'raise SystemExit(3)'\n```\n")
        assert run("<!-- snippet: exit 3 -->\n```sh\npython -c 'raise SystemExit(3)'\n```\n") == 1

    def test_an_unknown_command_is_told(self, run: Callable[[str], int]) -> None:
        """A command is run, or known to be for the reader's machine; nothing is left out in silence."""
        assert run("```sh\npip install nothing-at-all\n```\n") == 1
        with pytest.raises(SnippetError, match="'pythn' is not a command"):
            run("```sh\npythn -V\n```\n")

    def test_files_and_variables_reach_commands(self, run: Callable[[str], int]) -> None:
        """A file of the page can be imported, and an exported variable is seen."""
        text = (
            "<!-- snippet: file proj.py -->\n\n```python\nimport os\nname = os.environ['NAME']\n```\n"
            "```console\n$ export NAME=shop\n$ python -c 'import proj; \\\n  print(proj.name)'\nshop\n```\n"
        )
        assert run(text) == 2

    def test_addresses_lead_to_a_server_of_the_page(self, run: Callable[[str], int]) -> None:
        """The standard address in a page is not the one that is used."""
        text = (
            "```python\nimport redis\nurl = 'redis://localhost:6379/1'\n"
            "assert ':6379' not in url and url.endswith('/1')\n"
            "with redis.Redis.from_url(url) as client:\n    assert client.dbsize() == 0\n```\n"
        )
        assert run(text) == 1

    def test_a_background_command_goes_on(self, run: Callable[[str], int]) -> None:
        """The page continues once the text has been printed."""
        text = (
            "<!-- snippet: background ready to serve -->\n```console\n"
            "$ python -c 'import signal; print(\"ready to serve\"); signal.pause()'\n```\n```python\nx = 1\n```\n"
        )
        assert run(text) == 2

    @pytest.mark.parametrize(
        ("directive", "message"),
        [
            ("<!-- snippet: skip -->", "'skip' needs an argument"),
            ("<!-- snippet: exit soon -->", "'exit' needs a number"),
            ("<!-- snippet: later on -->", "'later' is none of"),
            ("<!-- snippet skip -->", "not a directive"),
            ("<!-- snippet: skip it does not matter -->\ntext", "a block must follow"),
        ],
    )
    def test_a_bad_directive_is_told(self, run: Callable[[str], int], directive: str, message: str) -> None:
        """A directive that is not understood does not pass as a comment."""
        with pytest.raises(SnippetError, match=message):
            run(f"{directive}\n```python\nx = 1\n```\n")

    def test_a_block_inside_a_longer_fence_is_text(self, run: Callable[[str], int]) -> None:
        """A page can show how a block is written."""
        assert run("````markdown\n```python\nnothing\n```\n````\n") == 0
