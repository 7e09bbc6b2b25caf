"""Sphinx configuration. `make docs` builds without the network, and a warning is an error."""

from __future__ import annotations

from importlib.metadata import version as version_of

project = "anarchon-tasks"
author = "The anarchon-tasks authors"
project_copyright = "The anarchon-tasks authors"
release = version = version_of("anarchon-tasks")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]

# Pages are plain Markdown: colon fences for notes, definition lists for reference tables, anchors down to `###`.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

nitpicky = True
nitpick_ignore_regex = [
    # The docs build without the network, so names of Python and Celery are no links.
    ("py:class", r"Celery|ZoneInfo|datetime|tzinfo|(collections\.abc|datetime|os|zoneinfo)\..*"),
    # Names in signatures that are no part of the reference.
    ("py:class", r"Backend|Clock|Delivered|Duration|Explanation|F|Fold|Gap|Header|LeaseLost|LeaseStore|Publisher"),
    ("py:class", r"Client|(At|Cron|Every|)Schedule|Target|Trigger|events\.Events"),
    ("py:class", r"anarchon_tasks\.(model|schedules|stores)\..*|anarchon_celery\.settings\..*"),
    # Errors have a table of their own.
    ("py:exc", r"\w+"),
]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"anarchon-tasks {release}"

# Copy the commands of a console block, not their output.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
