"""Documents of word processors: what is translated in them, what stays, and archives that are not opened."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.serving.documents import Document, split
from regard.serving.messages import Refused
from regard.serving.office import MOST_BYTES, MOST_PARTS, repack, unpack
from tests.served import TEXT, Running, running, save_model

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
BOLD, PLAIN = "<w:rPr><w:b/></w:rPr>", ""


def archive(parts: dict[str, str | bytes], **more: Any) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as found:
        for name, content in parts.items():
            found.writestr(name, content, **more)
    return file.getvalue()


def run(text: str, properties: str = PLAIN) -> str:
    return f'<w:r w:rsidR="00A1">{properties}<w:t>{text}</w:t></w:r>'


def body(*paragraphs: str) -> str:
    inner = "".join(f"<w:p><w:pPr><w:jc/></w:pPr>{paragraph}</w:p>" for paragraph in paragraphs)
    return f'<?xml version="1.0" encoding="UTF-8"?><w:document xmlns:w="{W}"><w:body>{inner}</w:body></w:document>'


def runs(xml: str) -> list[list[tuple[str, bool]]]:
    """Of each paragraph, its text in pieces, and which are bold. There is no text outside of runs."""
    found = []
    for paragraph in ElementTree.fromstring(xml).iter(f"{{{W}}}p"):
        pieces = [
            ("".join(text.text or "" for text in one.iter(f"{{{W}}}t")), one.find(f".//{{{W}}}b") is not None)
            for one in paragraph.iter(f"{{{W}}}r")
        ]
        found.append([piece for piece in pieces if piece[0]])
        inside = "".join(piece[0] for piece in pieces)
        assert "".join(paragraph.itertext()) == inside
    return found


def upper(document: Document) -> str:
    """Each sentence in capitals, in its own order."""
    links = [[(i, i) for i in range(len(text.split()))] for text in document.sentences]
    return document.join([text.upper() for text in document.sentences], links)


def test_formats_go_with_their_words() -> None:
    text = body(
        run("one ") + run("red", BOLD) + run(" apple &amp; more. Two") + run(" pears."),
        run("tab") + "<w:r><w:tab/><w:t>bed</w:t><w:br/><w:t>next</w:t></w:r>",
        run("", BOLD) + run("4711"),
    )
    document = split(text, "docx")
    assert document.sentences == ["one red apple & more.", "Two pears.", "tab", "bed", "next", "4711"]
    found = upper(document)
    assert runs(found) == [
        [("ONE ", False), ("RED", True), (" APPLE & MORE. TWO PEARS.", False)], [("TABBEDNEXT", False)],
        [("4711", False)],
    ]  # fmt: skip
    assert found.count("<w:tab/>") == found.count("<w:br/>") == 1
    assert found.count("<w:pPr><w:jc/></w:pPr>") == 3


def test_words_change_places_with_their_formats() -> None:
    text = body(run("one ") + run("red", BOLD) + run(" apple"))
    written = split(text, "docx").join(["Apfel rot ein"], [[(0, 2), (1, 1), (2, 0)]])
    assert runs(written) == [[("Apfel ", False), ("rot", True), (" ein", False)]]
    link = '<w:hyperlink r:id="rId1">' + run("red") + "</w:hyperlink>"
    text = body(run("one ") + link + run(" apple")).replace("<w:body>", '<w:body xmlns:r="r">')
    written = split(text, "docx").join(["Apfel rot ein"], [[(0, 2), (1, 1), (2, 0)]])
    assert runs(written) == [[("Apfel ", False), ("rot", False), (" ein", False)]]
    linked = ElementTree.fromstring(written).find(f".//{{{W}}}hyperlink")
    assert linked is not None
    assert "".join(linked.itertext()) == "rot"


PIECES = st.sampled_from(
    [run("alpha "), run("beta. Eta", BOLD), run(" "), run("", BOLD), run("&lt;x&gt; ", "<w:rPr><w:i/></w:rPr>"),
     "<w:proofErr/>", "<w:r><w:t>a</w:t><w:tab/><w:t>b. C</w:t></w:r>", "<w:r><w:br/></w:r>",
     "<w:hyperlink>" + run("go "), "</w:hyperlink>", "<w:r><w:drawing/></w:r>",
     "<w:r><w:t>a</w:t><w:noBreakHyphen/><w:t>b </w:t></w:r>",
     "<w:r><w:rPr><w:i/></w:rPr><w:footnoteReference/></w:r>"]
)  # fmt: skip


@given(st.lists(st.lists(PIECES, max_size=8), max_size=3), st.booleans(), st.booleans())
def test_any_document_stays_well_formed(paragraphs: Sequence[Sequence[str]], linked: bool, backwards: bool) -> None:
    text = body(*("".join(balanced(pieces)) for pieces in paragraphs))
    document = split(text, "docx")
    same = runs(document.join(document.sentences))
    assert ["".join(piece for piece, _ in one) for one in same] == [
        "".join(piece for piece, _ in one) for one in runs(text)
    ]
    written = [" ".join(one.split()[:: -1 if backwards else 1]) + " &" for one in document.sentences]
    links = [[(i, i) for i in range(len(one.split()))] if linked else None for one in document.sentences]
    found = document.join(written, links)
    shown = "".join(piece for one in runs(found) for piece, _ in one)
    assert all(one in shown for one in written)
    for tag in ("<w:tab/>", "<w:drawing/>", "<w:hyperlink>", "<w:br/>", "<w:footnoteReference/>"):
        assert found.count(tag) == text.count(tag)


def balanced(pieces: Sequence[str]) -> list[str]:
    """Links opened and closed in turn."""
    found, open_ = list[str](), False
    for piece in pieces:
        if "hyperlink" in piece:
            if piece.startswith("</") != open_:
                continue
            open_ = not open_
        found.append(piece)
    return [*found, "</w:hyperlink>"] if open_ else found


def test_an_open_document_is_read_like_a_page() -> None:
    text = (
        '<office:document-content xmlns:text="t" xmlns:office="o"><office:body><text:h>one apple</text:h>'
        '<text:p>a <text:span text:style-name="T1">red</text:span> car<text:s/>stops.<text:line-break/>Now</text:p>'
        "<text:p>Name:<text:tab/>Bob</text:p>"
        "</office:body></office:document-content>"
    )
    document = split(text, "odt")
    assert document.sentences == ["one apple", "a red car stops.", "Now", "Name:", "Bob"]
    assert document.join(document.sentences) == text
    assert '<text:span text:style-name="T1">RED</text:span>' in upper(document)
    ElementTree.fromstring(upper(document))


def test_tags_of_an_open_document_nest_whatever_is_aligned() -> None:
    """Across sentences, and where they are too many to go with their words."""
    text = (
        '<text:p xmlns:text="t"><text:a><text:span><text:a>apple. Twoone car</text:a>carone </text:span>one </text:a>'
        "<text:a>  car</text:a>apple. Twocar</text:p>"
    )
    sentences = ["APPLE.", "ONE CARAPPLE. TWOONE CARCARONE", "TWOCAR"]
    written = split(text, "odt").join(sentences, [[(0, 0)], [(2, 0), (3, 1), (0, 2)], [(0, 0)]])
    assert "".join(ElementTree.fromstring(written).itertext()).split() == " ".join(sentences).split()
    assert written.count("<text:a>") == 3
    pair = "<text:a>a</text:a> <text:span>b</text:span> "
    text = f'<text:p xmlns:text="t"><text:a>one. Two {pair * 30}</text:a>three <text:span>x. Four</text:span></text:p>'
    written = upper(split(text, "odt"))
    ElementTree.fromstring(written)
    assert (written.count("<text:a>"), written.count("<text:span>")) == (31, 31)


def test_what_is_no_text_of_an_open_document_stays() -> None:
    kept = (
        "<office:automatic-styles><number:text>o'clock</number:text></office:automatic-styles>",
        "<text:tracked-changes><dc:date>2020-01-01T00:00:00</dc:date><text:p>gone</text:p></text:tracked-changes>",
        "<dc:creator>Ann</dc:creator><dc:date>2020-01-01T00:00:00</dc:date>",
        "<office:binary-data>aGVsbG8gd29y bGQ=</office:binary-data>", "<text:note-citation>1</text:note-citation>",
    )  # fmt: skip
    text = "<text:p>one <office:annotation>{2}<text:p>so?</text:p></office:annotation>{4}</text:p>{0}{1}{3}"
    document = split(text.format(*kept), "odt")
    assert document.sentences == ["one", "so?"]
    assert upper(document) == text.replace("one ", "ONE ").replace("so?", "SO?").format(*kept)
    fields = "Page <text:page-number>7</text:page-number> of <text:page-count>9</text:page-count>"
    document = split(f"<text:p>{fields}</text:p>", "odt")
    assert document.sentences == ["Page 7 of 9"]
    written = fields.replace("Page", "Seite").replace("of", "von")
    assert document.join(["Seite 7 von 9"]) == f"<text:p>{written}</text:p>"


def test_what_stands_beside_text_in_a_run_does_not_hide_it() -> None:
    note = '<w:r><w:rPr><w:i/></w:rPr><w:footnoteReference w:id="2"/></w:r>'
    text = body(
        run("one") + note + run(" apple"), '<w:r><w:t>two</w:t><w:sym w:char="F0B0"/><w:t> pears</w:t></w:r>',
        "<w:r><w:t>well</w:t><w:noBreakHyphen/><w:t>known</w:t></w:r>",
    )  # fmt: skip
    document = split(text, "docx")
    assert document.sentences == ["one apple", "two pears", "well-known"]
    found = upper(document)
    shown = [[piece for piece, _ in one] for one in runs(found)]
    assert shown == [["ONE", " APPLE"], ["TWO PEARS"], ["WELL-KNOWN"]]
    assert found.index("ONE") < found.index("footnoteReference") < found.index("APPLE")
    assert found.index("TWO") < found.index("<w:sym") < found.index("PEARS")


def test_white_space_between_tags_is_no_text() -> None:
    text = body(run("one ") + run("red", BOLD) + run(" apple"), "<w:r><w:drawing/></w:r>")
    indented = re.sub(r"<(?!w:t>|/w:t>|[?])", "\n  <", text).replace("<w:b/>", '<w:b\n w:val="1"/>')
    document = split(indented, "docx")
    assert document.sentences == ["one red apple"]
    assert runs(re.sub(r">\s+<", "><", upper(document)))[0] == [("ONE ", False), ("RED", True), (" APPLE", False)]
    assert split(indented.replace(">one ", ">").replace(">red<", "><").replace(" apple", ""), "docx").sentences == []


def test_an_encoding_is_that_of_what_is_written() -> None:
    text = body(run("one")).replace("UTF-8", "us-ascii")
    given = archive({"word/document2.xml": text})
    (name,) = texts = unpack(given, "docx")
    with zipfile.ZipFile(io.BytesIO(repack(given, {name: texts[name].replace("one", "zwölf")}))) as found:
        assert runs(found.read(name).decode()) == [[("zwölf", False)]]
        ElementTree.fromstring(found.read(name))


def test_other_parts_stay_as_they_are() -> None:
    parts: dict[str, str | bytes] = {
        "mimetype": "x", "word/document.xml": body(run("one")), "word/media/a.png": bytes(range(256)) * 9,
        "word/header1.xml": body(run("two")), "word/styles.xml": body(run("three")),
    }  # fmt: skip
    given = archive(parts)
    texts = unpack(given, "docx")
    assert list(texts) == ["word/document.xml", "word/header1.xml"]
    found = repack(given, {name: text.replace("o", "O\x00") for name, text in texts.items()})
    with zipfile.ZipFile(io.BytesIO(given)) as before, zipfile.ZipFile(io.BytesIO(found)) as after:
        assert before.namelist() == after.namelist()
        assert [x.compress_type for x in before.infolist()] == [x.compress_type for x in after.infolist()]
        for name in parts.keys() - texts.keys():
            assert before.read(name) == after.read(name)
    assert unpack(found, "docx")["word/header1.xml"].count("\x00") == 0


BOMB = b"0" * (MOST_BYTES // 4 + 1)
ENTRY = b"PK\1\2\x14\3\x14\0"  # how the entry of a part begins, before its flags
DOCTYPE = '<!DOCTYPE a [<!ENTITY b "cc">]><a>&b;</a>'
HOSTILE: dict[str, bytes] = {
    "no archive": b"PK\x03\x04 and nothing more",
    "no document": archive({"a.txt": "x"}),
    "not UTF-8": archive({"word/document.xml": b"\xff\xfe<"}),
    "a bomb": archive({"word/document.xml": "<a/>", **{f"word/media/{i}": BOMB for i in range(4)}}),
    "many parts": archive({"word/document.xml": "<a/>", **{str(i): "" for i in range(MOST_PARTS)}}),
    "entities": archive({"word/document.xml": DOCTYPE}),
    "a way out": archive({"word/document.xml": "<a/>", "../../etc/x": "x"}),
    "a root": archive({"word/document.xml": "<a/>", "/etc/x": "x"}),
    "a drive": archive({"word/document.xml": "<a/>", "C:\\x": "x"}),
    "a control character": archive({"word/document.xml": "<a/>", "a\nb": "x"}),
    "a long name": archive({"word/document.xml": "<a/>", "x" * 300: "x"}),
    "another compression": archive({"word/document.xml": "<a/>"}, compress_type=zipfile.ZIP_LZMA),
    "damaged elsewhere": archive({"word/document.xml": "<a/>", "a.png": b"abc"}, compress_type=0).replace(b"bc", b"cb"),
    "encrypted": archive({"word/document.xml": "<a/>"}).replace(ENTRY + b"\0", ENTRY + b"\1"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_archives_that_are_not_opened(case: str) -> None:
    with pytest.raises(Refused) as found:
        unpack(HOSTILE[case], "docx")
    assert found.value.status in (400, 413)


def test_two_parts_of_one_name_are_refused() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("word/document.xml", "<a/>")
        with pytest.warns(UserWarning, match="Duplicate"):
            packed.writestr("word/document.xml", "<b/>")
    with pytest.raises(Refused, match="parts that no document has"):
        unpack(file.getvalue(), "docx")


def test_a_part_that_is_longer_than_it_says_is_not_read() -> None:
    long, short = (77777).to_bytes(4, "little"), (10).to_bytes(4, "little")
    content = archive({"word/document.xml": "x" * 77777}).replace(long, short)
    with pytest.raises(Refused, match="damaged"):
        unpack(content, "docx")


@pytest.mark.parametrize(
    "piece", ["<w:r>", "<w:r><w:rPr>", "<w:r><w:t>", "<w:r ", "<w:hyperlink>", "<w:proofErr ", "<w:t ", "<w:rPr><w:b/>"]
)
def test_broken_markup_is_no_trouble(piece: str) -> None:
    """With steps that grow with the square of its length this would not end."""
    text = piece * 200_000
    document = split(text, "docx")
    assert document.join(document.sentences) == text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("office")
    save_model(folder / "one", TEXT)
    model = {"folder": "one", "languages": ["en:de", "fr:de"]}
    with running(folder, models=[model], limits={"characters": 60}) as found:
        yield found


def test_a_document_is_translated(server: Running) -> None:
    given = archive({"word/document.xml": body(run("alpha ") + run("beta", BOLD)), "word/media/a.png": b"\x00\x01"})
    for source in ("en", "auto"):
        form, files = {"source": source, "target": "de"}, {"file": ("A.docx", given)}
        answer = server.client.post("/translate_file", data=form, files=files)
        assert answer.status_code == 200, answer.text
        found = httpx.get(answer.json()["translatedFileUrl"])
        assert found.headers["content-type"].endswith("wordprocessingml.document")
        assert re.search(r'filename="A_translated.docx"', found.headers["content-disposition"])
        written = server.post("/v1/generate", {"input": "alpha beta"}).json()["outputs"][0][0]["text"]
        (pieces,) = runs(unpack(found.content, "docx")["word/document.xml"])
        assert "".join(text for text, _ in pieces) == written
    long = archive({"word/document.xml": body(run("alpha " * 20))})
    answer = server.client.post("/translate_file", data=form, files={"file": ("a.docx", long)})
    assert answer.status_code == 413
    assert "characters" in answer.json()["error"]


def test_what_is_too_long_is_refused_before_it_is_read(server: Running) -> None:
    """What is no sentence counts, too, and several languages together."""
    form = {"source": "auto", "target": "de"}
    long = archive({"word/document.xml": body(run("!" * 61))})
    assert server.client.post("/translate_file", data=form, files={"file": ("a.docx", long)}).status_code == 413
    texts = ["this is a text in the language of England", "ceci est un texte dans la langue des Français"]
    for some, status in (texts[:1], 200), (texts[1:], 200), (texts, 413):
        assert server.client.post("/translate", json={"q": some, **form}).status_code == status
