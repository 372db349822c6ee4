"""What tests of training share: a count of what is compiled."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from reticent.models import compiled


@pytest.fixture
def compiled_calls(monkeypatch: pytest.MonkeyPatch, _compiler: None) -> Counter[str]:
    """How often each compiled function was called."""
    calls: Counter[str] = Counter()
    compile_one = compiled._compile

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled = compile_one(function)
        # Compiled, and not the function as it was.
        assert compiled._torchdynamo_orig_callable is function

        def call(*arguments: Any) -> Any:
            calls[function.__name__] += 1
            return compiled(*arguments)

        return call

    monkeypatch.setattr(compiled, "_compile", counting)
    return calls
