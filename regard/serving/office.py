"""Documents of word processors: `.docx` and `.odt` are archives of XML, whose text is translated like that of HTML. All
other parts of an archive stay as they are. Nothing is unpacked to disk, and no entity is expanded."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from io import BytesIO

from regard.serving.documents import Document, Format, Unit
from regard.serving.markup import InlineRun, MarkupToken, markup
from regard.serving.messages import Refused
from regard.serving.sentences import LONGEST, names

MOST_BYTES = 64 * 2**20  # of an archive's parts, unpacked
MOST_PARTS = 5000
OFFICE: dict[Format, re.Pattern[str]] = {  # the parts that hold what is read
    "docx": re.compile(r"word/((document|header|footer)\d*|footnotes|endnotes)\.xml"),
    "odt": re.compile(r"content\.xml"),
}
ENTRY = b"PK\1\2"  # how the entry of each part begins
KEPT = 'xml:space="preserve"'  # Word drops blanks at the ends of a text without it


def unpack(content: bytes, form: Format) -> dict[str, str]:
    """The XML of the parts of a document that hold text, by their names."""
    if content.count(ENTRY) > MOST_PARTS:  # before there is an object for each
        raise _too_large()
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            _check(archive.infolist())
            if archive.testzip() is not None:  # one of the parts that stay is damaged
                raise zipfile.BadZipFile
            found = {x: archive.read(x).decode() for x in archive.namelist() if OFFICE[form].fullmatch(x)}
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, NotImplementedError):
        raise Refused(400, "bad_request", f"the file is not a .{form} document, or damaged") from None
    if not found:
        raise Refused(400, "bad_request", f"the file is not a .{form} document: it has no text in it")
    if name := next((name for name, text in found.items() if "<!DOCTYPE" in text), None):
        raise Refused(400, "bad_request", f"{name} in the file has a document type declaration, which is not read")
    return found


def _check(parts: list[zipfile.ZipInfo]) -> None:
    """Refuse an archive that is more, or other, than a document."""
    if sum(part.file_size for part in parts) > MOST_BYTES:
        raise _too_large()
    known = set[str]()
    for part in parts:
        name = part.filename
        odd = name in known or len(name) > 255 or ".." in name.split("/") or re.search(r"^/|[\\:\0-\x1f]", name)
        if odd or part.flag_bits & 1 or part.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Refused(400, "bad_request", "the file is encrypted, or has parts that no document has")
        known.add(name)


def _too_large() -> Refused:
    return Refused(413, "too_large", f"the file unpacks to more than {MOST_PARTS} parts or {MOST_BYTES:,} bytes")


def repack(content: bytes, texts: Mapping[str, str]) -> bytes:
    """The archive with this XML in place of that of some parts."""
    file = BytesIO()
    with zipfile.ZipFile(BytesIO(content)) as archive, zipfile.ZipFile(file, "w") as packed:
        packed.comment = archive.comment
        for part in archive.infolist():
            text = texts.get(part.filename)
            packed.writestr(part, archive.read(part) if text is None else _encoded(text))
    return file.getvalue()


def _encoded(text: str) -> bytes:
    return _DECLARED.sub(r"\1UTF-8", _NOTHING.sub("", text)).encode()


def shown(text: str) -> Iterator[str]:
    """What stands between the tags of a part."""
    return (part.strip() for part in re.split(r"<[^<>]*>", text))


# OpenDocument

INLINE = names("text:span text:a text:ruby text:ruby-base text:meta")
POINTS = names("""
    text:soft-page-break text:bookmark text:bookmark-start text:bookmark-end text:reference-mark
    text:reference-mark-start text:reference-mark-end
""")
STAYING = names("""
    office:automatic-styles office:binary-data office:scripts text:tracked-changes text:note-citation
    dc:creator dc:date meta:creator-initials meta:date-string
""")
FIELDS = names("""
    text:page-number text:page-count text:date text:time text:sequence text:sequence-ref text:bookmark-ref
    text:reference-ref text:note-ref
""")


def odt(text: str, *, language: str = "", longest: int = LONGEST) -> Document:
    """The text of an OpenDocument, which has inline tags as HTML does."""
    return markup(
        text, language=language, longest=longest, inline=INLINE, points=POINTS, blanks=names("text:s"),
        untouched=STAYING, untouched_inline=FIELDS,
    )  # fmt: skip


# Office Open XML

_AT = r"(?:\s[^<>]*)?"  # attributes; none of these patterns looks beyond the next tag for its end
_PROPERTIES = r"<w:rPr/>|<w:rPr>\s*(?:<(?!/?w:r[\s>]|/w:rPr>)[^<>]*>\s*)*</w:rPr>"
_INSIDE = rf"<w:t{_AT}>[^<]*</w:t>|<w:(?!fldChar|rPr|r\b)\w+{_AT}/>"
_PIECE = re.compile(
    rf"<w:r{_AT}>\s*(?:(?P<properties>{_PROPERTIES})\s*)?(?P<run>(?:(?:{_INSIDE})\s*)+)</w:r>"
    rf"|(?P<point><w:(?:proofErr|bookmarkStart|bookmarkEnd){_AT}/>)"
    rf"|(?P<around></?(?P<name>w:hyperlink|w:ins|w:smartTag){_AT}>)"
)
_NOTHING = re.compile(  # runs without text, and characters that XML cannot hold
    rf"<w:r>(?:{_PROPERTIES})?<w:t {KEPT}></w:t></w:r>|[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]"
)
_PART = re.compile(rf"<w:t{_AT}>(?P<text>[^<]*)</w:t>|<w:[^<>]*>")
_BREAK = re.compile(r"<w:(?:br|cr|tab|ptab)[\s/]")
_HYPHEN = re.compile(r"<w:noBreakHyphen[\s/]")
_DECLARED = re.compile(r"""^(\ufeff?<\?xml[^<>]*?\sencoding=["'])[\w.-]+""")


def docx(text: str, *, language: str = "", longest: int = LONGEST) -> Document:
    """The text of a Word document. There text stands in runs, one for each change of format. What stands side by side
    in runs is read as one text; the format that most of it has is that of the text, any other an inline element."""
    parts, line, at = list[str | Unit](), list[re.Match[str]](), 0
    for piece in _PIECE.finditer(text):
        between = text[at : piece.start()]
        if line and between.strip():
            parts += _line(line, language, longest)
            line = []
        if not line:
            parts.append(between)
        line.append(piece)
        at = piece.end()
    return Document([*parts, *_line(line, language, longest), text[at:]])


def _line(pieces: list[re.Match[str]], language: str, longest: int) -> Iterator[str | Unit]:
    """What stands side by side: sentences, and what stays between them."""
    amounts = Counter[str]()
    for piece in pieces:
        amounts[piece["properties"] or ""] += len(piece["run"] or "")
    usual = amounts.most_common(1)[0][0] if amounts else ""
    opening, closing = f"<w:r>{usual}<w:t {KEPT}>", "</w:t></w:r>"
    found, run = list[str | Unit](), InlineRun()
    for token in _tokens(pieces, usual, opening, closing):
        if token.name == "break":
            found += [*run.parts(language, longest, lines=False), token.raw]
            run = InlineRun()
        elif token.name == "hyphen":
            run.read_as("-", token.raw)
        else:
            run.add(token)
    found += run.parts(language, longest, lines=False)
    if any(isinstance(part, Unit) for part in found):
        yield from (opening, *found, closing)
    else:
        yield pieces[0].string[pieces[0].start() : pieces[-1].end()] if pieces else ""


def _tokens(pieces: list[re.Match[str]], usual: str, opening: str, closing: str) -> Iterator[MarkupToken]:
    """Text in a run of the usual format, which each tag closes and opens again where it stands."""
    for piece in pieces:
        if piece["run"] is None:
            raw = f"{closing}{piece[0]}{opening}"
            yield MarkupToken(raw, piece["name"] or "point", piece[0][1] == "/", piece[0].endswith("/>"))
            continue
        properties = piece["properties"] or ""
        if properties != usual:
            yield MarkupToken(f"{closing}<w:r>{properties}<w:t {KEPT}>", "run")
        for part in _PART.finditer(piece["run"]):
            if part["text"] is not None:
                yield MarkupToken(part["text"])
            else:
                name = "break" if _BREAK.match(part[0]) else "hyphen" if _HYPHEN.match(part[0]) else "point"
                yield MarkupToken(f"</w:t>{part[0]}<w:t {KEPT}>", name, alone=True)
        if properties != usual:
            yield MarkupToken(f"{closing}{opening}", "run", closes=True)
