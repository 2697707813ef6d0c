"""Loads e-mails."""

from __future__ import annotations

from dataclasses import replace
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from email.utils import parsedate_to_datetime
from pathlib import Path

from voicevault_retrievers.documents._encoding import decode
from voicevault_retrievers.documents._html import parse_html
from voicevault_retrievers.documents._model import Part
from voicevault_retrievers.errors import DocumentError


def load_eml(path: Path) -> list[Part]:
    """The text of an e-mail, or where it has none its HTML by headings, with `sender`, `date` and `subject`.

    Sender and date stand above it, and its section is the subject. The names of attachments are a part, and a note says
    that they were not read. Raises DocumentError for a file without the headers of an e-mail.
    """
    message = BytesParser(EmailMessage, policy=policy.default).parsebytes(path.read_bytes())
    sender, date, subject = _header(message, "From"), _date(message), _header(message, "Subject")
    if not (sender or date or subject):
        raise DocumentError(f"{path.name} is not an e-mail (it has no From, Date or Subject): name it by what it is")
    told = {"sender": sender, "date": date, "subject": subject}
    metadata: dict[str, str | int] = {key: value for key, value in told.items() if value}
    above = tuple(filter(None, (", ".join(filter(None, (sender and f"From {sender}", date))),)))
    attached = [part.get_filename() or part.get_content_type() for part in message.iter_attachments()]
    parts = _body(message, path.name)
    names = ", ".join(attached)
    parts += [Part(f"Attachments: {names}")] if attached else []
    notes = (f"attachments not read: {names}",) if attached else ()
    if not any(part.text.strip() for part in parts):
        parts = [Part(subject)]
    return [
        replace(
            part,
            section=part.section or subject or None,
            above=(*above, *((subject,) if subject and part.section else ()), *part.above),
            metadata=metadata,
            notes=part.notes + notes,
        )
        for part in parts
    ]


def _body(message: EmailMessage, name: str) -> list[Part]:
    body = message.get_body(("plain", "html"))
    data = None if body is None else body.get_payload(decode=True)
    if body is None or not isinstance(data, bytes):
        return []
    text, notes = decode(data, name, body.get_content_charset())
    parts = parse_html(text, name) if body.get_content_subtype() == "html" else [Part(text)]
    return [replace(part, notes=notes) for part in parts]


def _header(message: EmailMessage, name: str) -> str:
    return " ".join(str(message.get(name, "")).split())


def _date(message: EmailMessage) -> str:
    """The date and time in ISO 8601 with its offset; as it is written where it cannot be understood."""
    written = _header(message, "Date")
    try:
        return parsedate_to_datetime(written).isoformat()
    except ValueError:
        return written
