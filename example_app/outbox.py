"""Stands for a mail server: mails are files in a folder."""

from __future__ import annotations

from email.message import EmailMessage
from pathlib import Path


def send_mail(folder: str, reference: str, *, to: str, text: str, token: int) -> None:
    """Put a mail into the outbox.

    Args:
        folder: the shop's.
        reference: the order's. It makes the Message-ID, by which mail readers drop what they have got before.
        to: the customer's address.
        text: the body.
        token: the task's fencing token. It makes the file's name, so that a mail which was sent twice shows.
    """
    mail = EmailMessage()
    mail["From"] = "shop@example.org"
    mail["To"] = to
    mail["Subject"] = f"Your order {reference}"
    mail["Message-ID"] = f"<{reference}@example.org>"
    mail.set_content(text)
    outbox = Path(folder) / "outbox"
    outbox.mkdir(exist_ok=True)
    (outbox / f"{reference}.{token}.eml").write_bytes(bytes(mail))


def mails_of(folder: str, reference: str) -> list[str]:
    """Read the mails that were sent about an order."""
    return [path.read_text() for path in sorted((Path(folder) / "outbox").glob(f"{reference}.*.eml"))]
