"""Parses mails with Python's `email` and prints what it found, one JSON object per mail.

Input: one mail per line, in base64. `defects` lists everything that the parser objects to, and
`wire` what RFC 5321 and RFC 5322 do not allow on the wire.
"""

import base64
import email
import email.policy
import json
import sys


def wire_defects(raw):
    if raw.count(b"\r") != raw.count(b"\r\n") or raw.count(b"\n") != raw.count(b"\r\n"):
        yield "a CR or LF that is not a line break"
    for line in raw.split(b"\r\n"):
        if len(line) > 998:
            yield f"a line of {len(line)} bytes"
    head = raw.split(b"\r\n\r\n")[0]
    for line in head.split(b"\r\n"):
        if len(line) > 78 and b" " in line.strip().partition(b": ")[2]:
            yield f"a header line that is not folded: {line[:100]!r}"
    if b"\0" in raw:
        yield "a NUL"


def part(message):
    found = {
        "type": message.get_content_type(),
        "transfer": message.get("content-transfer-encoding", "7bit"),
        "name": message.get_filename(),
        "disposition": message.get_content_disposition(),
    }
    if message.get_content_type() == "message/rfc822":
        found["subject"] = message.get_payload(0)["subject"]
    elif not message.is_multipart():
        found["base64"] = base64.b64encode(message.get_payload(decode=True)).decode()
        if message.get_content_maintype() == "text" and message.get_content_charset():
            found["text"] = message.get_content().replace("\r\n", "\n")
    return found


def parts(message):
    yield part(message)
    if message.is_multipart() and message.get_content_type() != "message/rfc822":
        for inner in message.iter_parts():
            yield from parts(inner)


def addresses(message, name):
    return [[a.display_name, a.addr_spec] for field in message.get_all(name, []) for a in field.addresses]


def judge(raw):
    message = email.message_from_bytes(raw, policy=email.policy.SMTP)
    defects = [str(defect) for inner in message.walk() for defect in inner.defects]
    defects += [f"{name}: {defect}" for name, value in message.items() for defect in value.defects]
    return {
        "headers": [[name, str(value)] for name, value in message.items()],
        "from": addresses(message, "from"),
        "to": addresses(message, "to"),
        "cc": addresses(message, "cc"),
        "reply_to": addresses(message, "reply-to"),
        "parts": list(parts(message)),
        "defects": defects,
        "wire": list(wire_defects(raw)),
    }


for line in sys.stdin:
    found = json.dumps(judge(base64.b64decode(line)), ensure_ascii=False) + "\n"
    # Bytes that are not UTF-8 are surrogates here.
    sys.stdout.buffer.write(found.encode("utf-8", "replace"))
