"""Progress without output, for callers that show none."""


class SilentProgress:
    """A sink that shows nothing; implements `protocols.Progress`."""

    def note(self, line: str) -> None:
        """Drop a note."""

    def begin(self, what: str, num_tokens: int) -> None:
        """Drop the start of a phase."""

    def advance(self, num_tokens: int) -> None:
        """Drop an advance."""
