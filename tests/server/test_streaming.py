"""Text that may be shown: never a part of a stop string, never half a character, however tokens divide it."""

from hypothesis import example, given
from hypothesis import strategies as st
from tiny_models import byte_fallback_tokenizer, byte_tokenizer

from reticent.decoding.detokenise import TextDecoder
from reticent.server.streaming import AnswerText, StopFilter

few_letters = st.text("abc", max_size=14)
stops_of_few_letters = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)


def shown_by_definition(text, stops):
    """The text up to the stop string that ends first (the earliest begun of those), found by looking at every end."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(few_letters, stops_of_few_letters, st.data())
@example("aab", ["ab"], None)
@example("abc", ["abc", "b"], None)
def test_pieces_join_to_the_text_before_the_first_stop_string(text, stops, data):
    pieces, rest = [], text
    while rest:
        size = 1 if data is None else data.draw(st.integers(1, len(rest)))
        pieces.append(rest[:size])
        rest = rest[size:]
    expected, stopped = shown_by_definition(text, stops)
    stop_filter, shown = StopFilter(stops), ""
    for piece in pieces:
        shown += stop_filter.push(piece)
        assert expected.startswith(shown)
        if stop_filter.is_stopped:
            break
    assert stop_filter.is_stopped == stopped
    assert shown + stop_filter.finish() == expected


def test_only_what_could_begin_a_stop_string_is_held_back():
    stop_filter = StopFilter(["END"])
    assert [stop_filter.push(piece) for piece in ("xE", "N", "E", "N", "y")] == ["x", "", "EN", "", "ENy"]


@given(st.text(max_size=12), st.lists(st.text(min_size=1, max_size=2), max_size=2))
def test_characters_of_several_tokens_come_whole(text, stops):
    tokenizer = byte_tokenizer()
    answer = AnswerText(lambda ids: tokenizer.decode(ids, skip_special_tokens=True), stops)
    expected, stopped = shown_by_definition(text, stops)
    shown = ""
    for token in tokenizer(text)["input_ids"]:
        shown += answer.push(token)
        assert expected.startswith(shown)
        if answer.is_stopped:
            break
    assert answer.is_stopped == stopped
    assert shown + answer.finish() == expected


def test_a_character_that_never_becomes_whole_is_replaced_at_the_end():
    tokenizer = byte_tokenizer()
    answer = AnswerText(lambda ids: tokenizer.decode(ids, skip_special_tokens=True), [])
    tokens = tokenizer("é")["input_ids"]
    assert answer.push(tokens[0]) == ""
    assert answer.finish() == "\N{REPLACEMENT CHARACTER}"


def test_a_line_break_that_stray_bytes_spoil_is_not_shown_before_them():
    decode = TextDecoder(byte_fallback_tokenizer())
    line_break, stray = byte_fallback_tokenizer().convert_tokens_to_ids(["<0x0A>", "<0xF0>"])
    answer = AnswerText(decode, [], decode.stray_byte)
    shown = answer.push(line_break) + answer.push(stray) + answer.finish()
    assert shown == decode([line_break, stray]) == "\N{REPLACEMENT CHARACTER}" * 2
