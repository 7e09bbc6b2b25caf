"""How a command fails: one line on standard error, an exit code, no traceback, no password."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import parse_qsl, unquote

import click

from anarchon_tasks.config import variable
from anarchon_tasks.errors import AnarchonError, ConfigError
from anarchon_tasks.stores._urls import HIDDEN, without_password

FAILED = 1
WRONG = 2
DEBUG = "ANARCHON_DEBUG"
"""With this variable set, an error that nobody foresaw is shown with its traceback."""
STORE = "anarchon.store"
"""Where a command leaves the URL of its store, in the context's `meta`."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"]+")
_PASSWORD = re.compile(r"://[^:@/?]*:(.*)@", re.DOTALL)
_SECRET_NAMES = ("password", "passwd", "secret")


class Failed(click.ClickException):
    """The command could not do what it was asked to."""

    exit_code = FAILED


class Wrong(click.ClickException):
    """The command was asked for something that makes no sense."""

    exit_code = WRONG


class SafeGroup(click.Group):
    """A group whose commands end in a message instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as the base class has it
        """Run the command; turn what it raises into a message and an exit code."""
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except click.UsageError as error:
            raise click.UsageError(_without_secrets(error.format_message(), ctx), ctx=error.ctx) from None
        except click.ClickException:
            raise
        except Exception as error:
            if os.environ.get(DEBUG) and not isinstance(error, AnarchonError):
                raise
            raise _failure(error, ctx) from None


def _failure(error: Exception, ctx: click.Context) -> click.ClickException:
    message = _without_secrets(str(error), ctx)
    if isinstance(error, AnarchonError):
        return Wrong(message) if isinstance(error, ConfigError) else Failed(message)
    return Failed(f"unexpected {type(error).__name__}: {message} ({DEBUG}=1 shows where)")


def _without_secrets(message: str, ctx: click.Context) -> str:
    """Hide the passwords of all URLs in a message, and wherever else the password of the store's URL stands in it."""
    for url in (ctx.meta.get(STORE), os.environ.get(variable("store"))):
        for secret in _secrets(url or ""):
            message = message.replace(secret, HIDDEN)
    return _URL.sub(lambda found: without_password(found[0]), message)


def _secrets(url: str) -> set[str]:
    found = _PASSWORD.search(url)
    password = found[1] if found else ""
    in_query = {value for name, value in parse_qsl(url.partition("?")[2]) if name.lower().endswith(_SECRET_NAMES)}
    return {secret for secret in {password, unquote(password), *in_query} if secret}
