"""Stop strings: nothing of them is shown, however the text is cut."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.answers.stop_strings import StopMatcher

_TEXT = st.text(alphabet="abé🙂", max_size=24)
_STOPS = st.lists(st.text(alphabet="abé🙂", min_size=1, max_size=4), max_size=3)


def _run(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    shown = ""
    for piece in pieces:
        result = matcher.push(piece)
        shown += result.text
        if result.is_stopped:
            return shown, True
    return shown + matcher.flush(), False


def _naive(text: str, stops: list[str]) -> tuple[str, bool]:
    """Cut before the longest stop string that ends at the earliest possible place."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@settings(deadline=None)
@given(_TEXT, _STOPS, st.data())
def test_result_depends_on_the_text_alone(text: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    bounds = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(bounds)]
    assert _run(pieces, stops) == _naive(text, stops)


@settings(deadline=None)
@given(_TEXT, _STOPS)
def test_what_is_shown_is_never_taken_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for char in text:
        result = matcher.push(char)
        shown += result.text
        if result.is_stopped:
            break
    assert _naive(text, stops)[0].startswith(shown)


def test_a_stop_string_over_four_tokens_shows_nothing() -> None:
    assert _run(["DEF", "G", "HI", "J"], ["DEFGHIJ"]) == ("", True)


def test_a_false_start_is_shown_in_the_end() -> None:
    matcher = StopMatcher(["###"])
    assert matcher.push("a##").text == "a"
    assert matcher.push("b").text == "##b"
    assert matcher.push("#").text == ""
    assert matcher.flush() == "#"
