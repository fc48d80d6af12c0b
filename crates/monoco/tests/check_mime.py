"""Reads mails before and after an edit with Python's own parser, and says what differs.

Takes JSON on stdin: {"edits": [...], "digests": [...]}, with mails in base64; an edit is one
of the subject, the footer or both, and `{subject}` is the subject that was there. Prints
{"problems": [...], "edited": {"case": ["plain", "html"]}, "judged": number}.
"""

import base64
import codecs
import html
import json
import sys
from email import message_from_bytes, policy

POLICIES = {"default": policy.default, "compat32": policy.compat32}
# What an edit may change in the header of the part that it changes.
OURS = {"content-type", "content-transfer-encoding", "mime-version"}


def headers(part, without=()):
    return [(name, str(value)) for name, value in part.items() if name.lower() not in without]


def payload(part):
    return part.get_payload(decode=True)


def text(part):
    name = part.get_content_charset("us-ascii")
    try:
        codecs.lookup(name)
    except LookupError:
        name = "us-ascii"
    return payload(part).decode(name, "replace")


def lines(words):
    return words.replace("\r\n", "\n")


def same_shape(old, new):
    """What must not change of a part, whatever is done to its text."""
    for look in (
        lambda part: part.get_content_type(),
        lambda part: part.get_filename(),
        lambda part: part.get_content_disposition(),
        lambda part: part.is_multipart(),
        lambda part: part.get_boundary(),
        lambda part: part.preamble,
        lambda part: part.epilogue,
        lambda part: part.get_param("format"),
        lambda part: [type(defect) for defect in part.defects],
    ):
        if look(old) != look(new):
            return f"{look(old)!r} became {look(new)!r}"
    return None


def has_plain_footer(old, new, footer):
    if not new.startswith(old):
        return f"{old!r} is not the start of {new!r}"
    added = new[len(old):]
    on_its_own_line = not old or old.endswith("\n") or added.startswith("\n")
    if not on_its_own_line or added.strip("\n") != "-- \n" + footer["text"]:
        return f"added {added!r}"
    return None


def has_html_footer(old, new, footer):
    start, mark = '<div class="monoco-footer">', "</div>"
    if new.count(start) != 1:
        return f"no footer in {new!r}"
    before, rest = new.split(start)
    inner, behind = rest.split(mark, 1)
    want = footer["html"] or html.escape(footer["text"]).replace("\n", "<br>\n")
    if html.unescape(inner) != html.unescape(want):
        return f"the footer is {inner!r}"
    candidates = [before + behind]
    if behind.startswith("\n"):
        candidates.append(before + behind[1:])
    if before.endswith("\n"):
        candidates.append(before[:-1] + behind)
    return None if old in candidates else f"{old!r} became {new!r}"


def judge_subject(old, new, case):
    """The first subject is the new one, and the other fields are what they were."""
    old_fields, new_fields = headers(old), headers(new)
    names = [name.lower() for name, _ in old_fields]
    # A mail without one gets it at the end.
    place = names.index("subject") if "subject" in names else len(names)
    if new_fields[:place] + new_fields[place + 1:] != old_fields[:place] + old_fields[place + 1:]:
        return f"fields {old_fields} became {new_fields}"
    name, value = new_fields[place]
    if name.lower() != "subject":
        return f"{name} is there instead of a subject"
    # The older policy leaves encoded words as they are.
    was = old_fields[place][1] if place < len(old_fields) else ""
    if "\ufffd" in was:
        # Python does not guess the charset of undeclared bytes; the mail's reader does.
        was = dict(old.raw_items())[old_fields[place][0]]
        was = was.encode("ascii", "surrogateescape").decode("windows-1252")
    want = case["subject"].replace("{subject}", " ".join(was.split()))
    if case["policy"] == "default" and value.strip() != want.strip():
        return f"the subject is {value!r}"
    return None


def judge_edit(case, edited):
    reader = POLICIES[case["policy"]]
    old = message_from_bytes(base64.b64decode(case["old"]), policy=reader)
    new = message_from_bytes(base64.b64decode(case["new"]), policy=reader)
    if case["edit"] != "footer":
        if problem := judge_subject(old, new, case):
            return problem
    old_parts, new_parts = list(old.walk()), list(new.walk())
    if len(old_parts) != len(new_parts):
        return f"{len(old_parts)} parts became {len(new_parts)}"
    for number, (before, after) in enumerate(zip(old_parts, new_parts)):
        if problem := same_shape(before, after):
            return problem
        is_same = before.is_multipart() or payload(before) == payload(after)
        without = {"subject"} if case["edit"] != "footer" and number == 0 else set()
        if not is_same:
            without = without | OURS
        if headers(before, without) != headers(after, without):
            return f"fields {headers(before)} became {headers(after)}"
        if is_same:
            continue
        if case["edit"] == "subject":
            return f"part {number} changed"
        kind = "html" if "html" in after.get_content_type() else "plain"
        check = has_html_footer if kind == "html" else has_plain_footer
        if problem := check(lines(text(before)), lines(text(after)), case["footer"]):
            return problem
        edited.setdefault(case["name"], []).append(kind)
    return None


def judge_digest(case):
    for reader in POLICIES.values():
        mail = message_from_bytes(base64.b64decode(case["new"]), policy=reader)
        if mail.get_content_type() != "multipart/digest" or mail.defects:
            return f"{mail.get_content_type()} with {mail.defects}"
        parts = mail.get_payload()
        if len(parts) != len(case["mails"]):
            return f"{len(case['mails'])} mails became {len(parts)}"
        for part, mail in zip(parts, case["mails"]):
            if part.get_content_type() != "message/rfc822":
                return part.get_content_type()
            inner = part.get_payload(0)
            alone = message_from_bytes(base64.b64decode(mail), policy=reader)
            if headers(inner) != headers(alone):
                return f"fields {headers(alone)} became {headers(inner)}"
            kinds = [[part.get_content_type() for part in m.walk()] for m in (alone, inner)]
            if kinds[0] != kinds[1]:
                return f"{kinds[0]} became {kinds[1]}"
    return None


def main():
    given = json.load(sys.stdin)
    problems, edited, judged = [], {}, 0
    for case in given["edits"]:
        seen = {}
        for name in POLICIES:
            found = {}
            problem = judge_edit(case | {"policy": name}, found)
            if problem:
                problems.append(f"{case['name']} ({case['edit']}, {name}): {problem}")
            seen[name] = found
            judged += 1
        if seen["default"] != seen["compat32"]:
            problems.append(f"{case['name']}: {seen}")
        edited |= seen["default"]
    for case in given["digests"]:
        if problem := judge_digest(case):
            problems.append(f"{case['name']}: {problem}")
        judged += 1
    print(json.dumps({"problems": problems, "edited": edited, "judged": judged}))


main()
