"""Finding the end of a JSON object in a text that is still growing."""


class JsonSpan:
    """Follows brackets and strings from an opening brace to the one that closes it.

    It checks no more than that: what a model wrote is handed on as it is.
    """

    def __init__(self) -> None:
        """Stand before the opening brace."""
        self.is_done = False
        self.is_broken = False
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False

    def take(self, text: str) -> int:
        """How many leading characters belong to the object.

        Ends it, broken, before a `<` outside of strings, which no JSON has.
        """
        for i, char in enumerate(text):
            if self._is_in_string:
                self._in_string(char)
            elif char == '"':
                self._is_in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.is_done = True
                    return i + 1
            elif char == "<":
                self.is_done = self.is_broken = True
                return i
        return len(text)

    def _in_string(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._is_in_string = False
