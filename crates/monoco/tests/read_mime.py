"""Reads mails with Python's own parser and says where another reader found something else.

Takes JSON on stdin: a list of {"name", "mail" (base64), "read"}, where `read` has what the other
reader found. Prints {"problems": [...], "judged": number of compared values}. What Python cannot
read (replacement characters, defects of addresses) is not compared.
"""

import base64
import json
import sys
from email import message_from_bytes, policy

ODD = "\ufffd"


def words(text):
    return " ".join(text.split())


def lines(text):
    return text.replace("\r\n", "\n").replace("\r", "\n").strip().lstrip("\ufeff")


def addresses(mail, name):
    fields = mail.get_all(name, [])
    if any(field.defects for field in fields):
        return None
    found = [a for field in fields for a in field.addresses if a.addr_spec not in ("", "<>")]
    shown = [[words(a.display_name), a.addr_spec] for a in found]
    return None if ODD in str(shown) else shown


def body(mail):
    part = mail.get_body(preferencelist=("plain", "html"))
    if part is None or part.is_multipart():
        return None
    try:
        text = part.get_content()
    except (LookupError, KeyError):
        return None
    return None if ODD in text else [part.get_content_type(), lines(text)]


def leaves(mail):
    """Parts with content; an attached mail is one."""
    if mail.get_content_maintype() == "multipart" and mail.is_multipart():
        for part in mail.iter_parts():
            yield from leaves(part)
    else:
        yield mail


def judge(case, problems):
    mail = message_from_bytes(base64.b64decode(case["mail"]), policy=policy.default)
    read, judged = case["read"], 0

    def compare(what, found, want):
        nonlocal judged
        judged += 1
        if found != want:
            problems.append(f"{case['name']}: {what}: found {found!r}, Python has {want!r}")

    subject = mail["subject"]
    if subject is not None and ODD not in str(subject):
        compare("subject", words(read["subject"] or ""), words(str(subject)))
    for name in ("from", "to", "cc"):
        want = addresses(mail, name)
        if want is not None:
            compare(name, [[words(n or ""), a] for n, a in read[name]], want)
    if mail["message-id"] is not None:
        compare("message-id", read["message_id"], words(str(mail["message-id"])))
    if mail["date"] is not None and mail["date"].datetime is not None:
        compare("date", read["date_ms"], int(mail["date"].datetime.timestamp() * 1000))
    want = body(mail)
    if want is not None and want[1]:
        found = [[kind, lines(text)] for kind, text in read["texts"] if text.strip()]
        compare("text", found[0] if found else None, want)
    parts = list(leaves(mail))
    for attachment in read["attachments"]:
        content = base64.b64decode(attachment["content"])
        same = [p for p in parts if p.get_content_type() == attachment["mime_type"]]
        if attachment["mime_type"].startswith("message/"):
            compare("attached mail", bool(same), True)
            continue
        payloads = [p.get_payload(decode=True) for p in same]
        compare(f"content of {attachment['name']}", content in payloads, True)
    named = {p.get_filename() for p in parts if p.get_filename() and p is not mail}
    for name in sorted(named - {a["name"] for a in read["attachments"]}):
        if not set(name) & set("/\\:*?\"<>|" + ODD):
            compare("attachments", sorted(a["name"] for a in read["attachments"]), name)
    return judged


def main():
    problems, judged = [], 0
    for case in json.load(sys.stdin):
        judged += judge(case, problems)
    print(json.dumps({"problems": problems, "judged": judged}))


main()
