"""Long inputs are cut and joined: nothing is lost, sentences end where they end, tags stay around their words."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.serving.documents import Document, markdown, plain, split, subtitles, whole
from regard.serving.markup import markup, scan
from regard.serving.sentences import sentences


def cut(text: str, **how: object) -> list[str]:
    return [text[start:end] for start, end in sentences(text, **how)]  # type: ignore[arg-type]


# Sentences


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Dr. Smith met J. S. Bach. He left.", ["Dr. Smith met J. S. Bach.", "He left."]),
        ("It is 3.14, see www.a.org. Really?! Yes.", ["It is 3.14, see www.a.org.", "Really?!", "Yes."]),
        ('"Stop!" he cried. "Why?" She ran.', ['"Stop!" he cried.', '"Why?"', "She ran."]),
        ("He paused... and went. Well… Good.", ["He paused... and went.", "Well…", "Good."]),
        ("Apples, pears, etc. They are ripe, e.g. Those.", ["Apples, pears, etc.", "They are ripe, e.g. Those."]),
        ("He said no. Then see no. 5 there.", ["He said no.", "Then see no. 5 there."]),
        ("(It rained.) We left.", ["(It rained.)", "We left."]),
        ("Il dit : « Oui. » Puis il partit.", ["Il dit : « Oui. »", "Puis il partit."]),
        ("¿Qué? ¡No! Sí.", ["¿Qué?", "¡No!", "Sí."]),
        ("你好。我是学生！他问：「真的？」好", ["你好。", "我是学生！", "他问：「真的？」", "好"]),
        ("ما هذا؟ هذا كتاب. انتهى", ["ما هذا؟", "هذا كتاب.", "انتهى"]),
        ("यह है। वह था॥ ठीक", ["यह है।", "वह था॥", "ठीक"]),
        ("1. First\nstill first?\r\n\n 2. Next. End", ["1. First", "still first?", "2. Next.", "End"]),
        (" \n\t ", []),
    ],
)  # fmt: skip
def test_sentences_end_where_they_end(text: str, found: list[str]) -> None:
    assert cut(text) == found


def test_ordinals_are_a_matter_of_language() -> None:
    text = "Am 3. Oktober kam er. Es war 2019. Dann ging er."
    assert cut(text, language="de") == ["Am 3. Oktober kam er.", "Es war 2019.", "Dann ging er."]
    assert cut(text, language="en")[:2] == ["Am 3.", "Oktober kam er."]


def test_letters_keep_their_accents_where_a_word_is_cut() -> None:
    text = "e\u0301\u0323" * 10
    assert [text[i:j] for i, j in sentences(text, longest=10)] == [text[i : i + 9] for i in (0, 9, 18)] + [text[27:]]
    assert len(sentences("\u0301" * 6000)) == 10, "accents without a letter are cut like one"


def test_long_sentences_are_cut_at_commas_or_blanks() -> None:
    assert cut("one two, three four, five six", longest=22) == ["one two, three four,", "five six"]
    assert cut("one two three four five", longest=12) == ["one two", "three four", "five"]
    assert cut("abcdefgh", longest=3) == ["abc", "def", "gh"]
    assert cut("aae\u0301", longest=3) == ["aa", "e\u0301"]  # an accent stays with its letter


WRITTEN = st.text(st.sampled_from("ab A.!?…。؟।,;\"')« \n\r\t\u00a0\u2028\u0301é1-"), max_size=80)


@given(WRITTEN, st.integers(1, 30), st.booleans())
def test_between_sentences_there_are_only_blanks(text: str, longest: int, lines: bool) -> None:
    at = 0
    for start, end in sentences(text, longest=longest, lines=lines):
        assert at <= start < end <= at + len(text)
        assert not text[at:start].strip()
        assert text[start:end] == text[start:end].strip()
        assert end - start <= longest
        assert not lines or len(text[start:end].splitlines()) == 1
        at = end
    assert not text[at:].strip()


# Texts


@given(WRITTEN | st.text(max_size=60), st.sampled_from(["text", "html", "markdown", "subtitles"]), st.integers(1, 40))
def test_untouched_parts_join_to_the_input(text: str, form: str, longest: int) -> None:
    document = split(text, form, longest=longest)  # type: ignore[arg-type]
    assert document.join(document.sentences) == text


def test_no_tag_is_lost_where_its_words_are_those_that_stay() -> None:
    document = split("<p><code>7</code> <a>car</a></p>", "html")
    written = document.join(["AUTO 7"], [[(0, 1)]])
    assert written == "<p><code>7</code><a>AUTO 7</a></p>"


@pytest.mark.parametrize("form", ["text", "html", "markdown", "subtitles", "docx", "odt"])
def test_what_is_sent_while_it_is_written_is_what_stands_in_the_document(form: str) -> None:
    text = "<w:r><w:t>" * (form == "docx") + "one. Two" + "</w:t></w:r>" * (form == "docx")
    units = split(text, form).units  # type: ignore[arg-type]
    assert [unit.text for unit in units] == ["one.", "Two"]
    assert all(not unit.grows or unit.put("a & <b>") == "a & <b>" for unit in units)
    assert all(unit.grows for unit in units) == (form in ("text", "markdown", "subtitles"))


def test_blanks_lines_and_paragraphs_stay() -> None:
    document = plain("  One.  Two.\n\n\n* * *\n\tThree\r\n")
    assert document.sentences == ["One.", "Two.", "Three"]
    assert document.join(["1", "2", "3"]) == "  1  2\n\n\n* * *\n\t3\r\n"
    assert whole(" a. B. ").sentences == ["a. B."]
    assert whole(" a. B. ").join(["x"]) == " x "
    with pytest.raises(ValueError, match="zip"):
        document.join(["1"], [None, None])
    with pytest.raises(ValueError, match="4 texts for 3 sentences"):
        document.join(["1", "2", "3", "4"])


def test_markdown_keeps_what_lines_begin_with() -> None:
    text = "# Title\n\n- [ ] An item. More\n1. First\n> quoted\n\n```sh\nls. Not this.\n```\n\n    code\n| a | b |\n"
    document = markdown(text)
    assert document.sentences == ["Title", "An item.", "More", "First", "quoted", "a | b |"]
    out = document.join([x.upper() for x in document.sentences])
    assert out.startswith("# TITLE\n\n- [ ] AN ITEM. MORE\n1. FIRST\n")


def test_subtitles_keep_numbers_and_times() -> None:
    text = "1\n00:00:01,000 --> 00:00:02,500\nHello there.\nYou!\n\n2\n00:00:03,000 --> 00:00:04,000\n42\n"
    document = subtitles(text)
    assert document.sentences == ["Hello there.", "You!", "42"]
    out = text.replace("Hello there.", "A").replace("You!", "B").replace("\n42", "\nC")
    assert document.join(["A", "B", "C"]) == out


def test_subtitles_keep_what_nobody_sees() -> None:
    """Metadata of a header, notes and styles of WebVTT, to their ends; but not a line that only begins like one."""
    head = "WEBVTT\nKind: captions\nLanguage: en\n\nNOTE One.\nTwo.\n\nSTYLE\n::cue {\n  color: red\n}\n\n"
    text = head + "00:01.000 --> 00:02.000 line:0\nNOTE this.\n\nintro\n00:02.000 --> 00:03.000\nSTYLE\n"
    for begin in ("", "\ufeff"):  # a byte order mark, as some editors write it
        assert subtitles(begin + text).sentences == ["NOTE this.", "STYLE"]
    assert subtitles("WEBVTT\n00:01.000 --> 00:02.000\nHello.\n").sentences == ["Hello."]
    assert subtitles("1\n00:00:01,000 --> 00:00:02,500\nNOTE this.\n").sentences == ["NOTE this."]


# HTML

PIECES = [
    "<b>", "</b>", "<i class='x y'>", "</i>", "<a href=\"?a=1&b=2\" title='>'>", "</a>", "<p>", "</p>", "<br>", "<br/>",
    "<img src=x>", "<code>", "</code>", "<span translate=no>", "</span>", "<script>", "</script>", "<pre>", "</pre>",
    "<!-- no. -->", "<![CDATA[x]]>", "<?php ?>", "<", ">", "\"", "'", "&amp;", "&nbsp;", "&#x41;", "&eacute", "&", " ",
    "\n", ". ", "A word", "two", "Three. Four", "!", "<b", "<a href=\"", "</", "<td>", "<wbr>", "<svg><path/></svg>",
]  # fmt: skip
MARKUP = st.lists(st.sampled_from(PIECES), max_size=24).map("".join)


@given(MARKUP)
def test_any_markup_joins_to_the_input(text: str) -> None:
    assert "".join(token.raw for token in scan(text)) == text
    document = markup(text, longest=30)
    assert document.join(document.sentences) == text


def mirrored(document: Document) -> str:
    """Every sentence with its words in capitals, back to front, and with their links."""
    written = [" ".join(reversed(x.upper().split())) + "?" for x in document.sentences]
    links = [[(i, len(x.split()) - 1 - i) for i in range(len(x.split()))] for x in document.sentences]
    return document.join(written, links)


@given(MARKUP, st.booleans())
def test_no_tag_is_lost_or_doubled(text: str, aligned: bool) -> None:
    document = markup(text, longest=30)
    out = mirrored(document) if aligned else document.join([x.upper() + "?" for x in document.sentences])
    tags = re.compile(r"</?(?:b|i|a|p|br|img|pre|td|wbr|script|svg|path|code|span)\b[^<>]*>")
    assert Counter(tags.findall(out)) == Counter(tags.findall(text))


NESTED = st.recursive(
    st.sampled_from(["one", "two three", "four.", " ", "A. B", "<img>", "<code>x</code>", "&lt;"]),
    lambda inner: st.tuples(st.sampled_from("biu"), st.lists(inner, max_size=4)).map(
        lambda x: f"<{x[0]}>{' '.join(x[1])}</{x[0]}>"
    ),
    max_leaves=12,
)


@given(st.lists(NESTED, max_size=5).map(" ".join), st.booleans())
def test_tags_stay_nested(text: str, aligned: bool) -> None:
    document = markup(text, longest=40)
    out = mirrored(document) if aligned else document.join([x.upper() + "?" for x in document.sentences])
    stack: list[str] = []
    for token in scan(out):
        if token.closes:
            assert stack.pop() == token.name, out
        elif token.name and not token.alone:
            stack.append(token.name)
    assert not stack


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("<p>one <b>two</b> three</p>", "<p>THREE <b>TWO</b> ONE?</p>"),
        ("<p>one <b>two</b>.</p>", "<p><b>TWO</b>. ONE?</p>"),
        ("<p><b>one two</b></p>", "<p><b>TWO ONE?</b></p>"),
        ("<p><b>One.</b> Two three.</p>", "<p><b>ONE.?</b> THREE. TWO?</p>"),
        ("<i>one <b>two</b></i> three", "THREE <i><b>TWO</b> ONE?</i>"),
        ("<i>one</i><b> two </b>three", "THREE <b>TWO</b> <i>ONE?</i>"),
        ("<i>one<br>two</i> three", "<i>ONE?<br>THREE TWO?</i>"),
        ("one two<sup>1</sup> <img src=a> three", "<img src=a>THREE <sup>TWO1</sup> ONE?"),
        ("<a href='?a&b'><img>one</a> two", "TWO <a href='?a&b'><img>ONE?</a>"),
        ("Call <code>f(x)</code> now", "NOW <code>f(x)</code> CALL?"),
        ("a &lt; b &amp; c", "C &amp; B &lt; A?"),
        ("<script>one. two</script><style>p{}</style><code>one two</code>", None),
        ("<div translate='no'>one <b>two</b> <div>x</div></div><p class=\"a notranslate\">two</p>", None),
        ("<!-- one --><!DOCTYPE html><textarea>one <b></textarea><hr>...<br>&nbsp;", None),
        ("one <b two", "TWO &lt;B ONE?"),
        ("<pre>one\n  two three</pre>", "<pre>ONE?\n  THREE TWO?</pre>"),
    ],
)  # fmt: skip
def test_tags_go_with_their_words(text: str, out: str | None) -> None:
    assert mirrored(markup(text)) == (text if out is None else out)


def test_without_links_tags_stand_around_the_sentence() -> None:
    document = markup("<p>One <b>two</b> three. <i>Four.</i></p>")
    assert document.sentences == ["One two three.", "Four."]
    assert document.join(["Eins", "Vier & mehr"]) == "<p><b>Eins</b> <i>Vier &amp; mehr</i></p>"


def test_words_apart_are_joined_unless_others_lie_between() -> None:
    document = markup("do <b>not</b> <i>smoke</i> here")
    links = [(1, 0), (2, 1), (1, 2), (3, 3)]  # not: ne … pas
    assert document.join(["ne fumez pas ici"], [links]) == "<b>ne</b> <i>fumez</i> pas ici"
    document = markup("do <b>not</b> smoke here")
    assert document.join(["ne fumez pas ici"], [links]) == "<b>ne fumez pas</b> ici"
    # Links beyond the words, as a bad aligner might give, do no harm.
    assert document.join(["ne"], [[(7, 0), (1, 9)]]) == "<b>ne</b>"


def test_what_stays_replaces_what_became_of_it() -> None:
    document = markup('Ask <span translate="no">Mr &amp; Co</span> now.')
    assert document.sentences == ["Ask Mr & Co now."]
    links = [[(i, i) for i in range(5)]]
    kept = '<span translate="no">Mr &amp; Co</span>'
    assert document.join(["Frag Herrn und Kompanie jetzt."], links) == f"Frag {kept} jetzt."
    assert document.join(["Jetzt Mr & Co fragen."]) == f"Jetzt {kept} fragen."
    assert kept in document.join(["Frag jetzt."])
    # Where nearly all seems to come from it, nothing is replaced: words of others would be lost.
    found = document.join(["Frag sie bitte jetzt alle."], [[(1, 0), (2, 1), (2, 2), (3, 3), (3, 4)]])
    assert kept in found
    assert found.replace(kept, "").split() == ["Frag", "sie", "bitte", "jetzt", "alle."]


@pytest.mark.parametrize(
    "piece", ['<a x=">" ', "<a", "<b>", "<b>x", "</b>", "<b>A. </b>", "<b><i>", "&", "<code>x</code> y. ", '<a "', "«."]
)  # fmt: skip
def test_long_and_broken_markup_is_no_trouble(piece: str) -> None:
    """Work that grows with the square of the length would take minutes here."""
    text = piece * (40_000 // len(piece))
    document = markup(text)
    assert document.join(document.sentences) == text
