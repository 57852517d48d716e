"""The rules that turn a document's text into clean text, in their order."""

from __future__ import annotations

from mindstream_common.documents import Document

from mindstream_cleaning import characters, html, mojibake, whitespace


def clean(document: Document) -> str:
    """HTML to text, mojibake repaired, characters and white space normalised."""
    text = html.to_text(document.text) if document.format == "html" else document.text
    return whitespace.normalise(characters.normalise(mojibake.repair(text)))
