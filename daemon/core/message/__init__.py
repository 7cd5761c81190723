"""Message: a job's payload as a mail, ready for the wire and proven, or the reason why it can't be one.

Answers one question: which bytes, from whom, to whom? `compose` is all that others need; it returns a `Message` or an
`Unbuildable`, never raises for anything that a payload holds, and is pure: no clock, no randomness, no I/O.

    payload     JSON text -> draft: keys, types, file contents
    template    texts of the payload's own, or of a template that it names
    address     one mailbox: what is accepted, A-labels, limits
    characters  what may not stand in a header
    header      fields as they are written: encoded words, folding
    plaintext   words of an HTML text
    body        transfer encodings, parts within parts
    compose     the order of it all, and the header fields that a job may set
    proof       reads the bytes again and compares
    brief       the reader that most mails need no other beside
    message     the two answers

Promises: the same payload, uid and time make the same bytes; a recipient in bcc is in no byte of the content; no input becomes
a header, a recipient or a part that wasn't asked for. Never sends, never logs, never stuffs dots (that is the transport's).
Sources: RFC 5321, 5322, 2045 to 2047, 2231, 2387, 2392, 3834, 5891, 6531, 6532, 8058.
"""

from __future__ import annotations

from daemon.core.message.compose import compose
from daemon.core.message.message import Message, Unbuildable
from daemon.core.message.template import NO_TEMPLATES, Rendered, Template, Templates

__all__ = ["NO_TEMPLATES", "Message", "Rendered", "Template", "Templates", "Unbuildable", "compose"]
