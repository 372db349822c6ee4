"""An extension of griffe: examples in docstrings become blocks of code, so that the site shows them as such."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class ExamplesAsCode(griffe.Extension):
    """Put each interactive example, up to the next empty line, into a fenced block."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute once it is read."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
