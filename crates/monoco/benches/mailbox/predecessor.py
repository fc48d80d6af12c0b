"""The mailbox algorithms of the Python predecessor, as a baseline for the benchmark.

This program implements the algorithms of the predecessor in plain Python, with the
standard library only. The predecessor worked as follows, and so does this program:

  sync      reads and parses every file of the mailbox on every run, evaluates the
            filters, links matching files into the workspace, and writes cursor.json,
            which it never reads
  list      parses every file of the workspace's inbox, sorts them, prints the newest
  claim,    read and rewrite the complete locks.json under one lock; complete finds the
  complete  file with glob("*{id}*") and moves it
  webhooks  are verified, answered, and merged in memory; a thread writes the file when
            the window is over. Files are not synced, so a crash can lose messages that
            were answered

Where there was a choice, this program has the faster alternative. A line of the front
matter is JSON and is parsed by the json module, because a YAML parser is far slower.
There is one thread per connection, and connections are kept; the predecessor had one
thread for all requests. A claim does not search for the file. The lock of a completed
Mail is removed, so that locks.json stays short. Defects of the predecessor that do not
affect speed are corrected: the window is in milliseconds, and a Mail is written once.
"""

import argparse
import base64
import fnmatch
import hashlib
import hmac
import json
import os
import shutil
import sys
import threading
import time
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MAX_WAIT_MS = 30_000
LEASE_S = 300


# Files


def parse(path):
    """Returns the front matter of a Mail file."""
    front = path.read_text(encoding="utf-8").split("---\n", 2)[1]
    fields, inner = {}, None
    for line in front.splitlines():
        key, _, value = line.partition(":")
        value = value.strip()
        if not line.startswith("  "):
            if value:
                fields[key] = json.loads(value)
            else:
                inner = fields[key] = {}
        elif inner is not None:
            inner[key.strip()] = json.loads(value)
    return fields


def render(fields, body):
    """Returns the content of a Mail file."""
    lines = ["---"]
    for key, value in fields.items():
        if isinstance(value, dict) and value:
            lines.append(f"{key}:")
            lines.extend(f"  {k}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items())
        else:
            lines.append(f"{key}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join([*lines, "---", "", body, ""])


# Filters


def matches(rule, mail):
    """Returns whether a workspace filter matches a Mail."""
    kind = rule["type"]
    if kind == "all":
        return all(matches(inner, mail) for inner in rule["conditions"])
    if kind == "any":
        return any(matches(inner, mail) for inner in rule["conditions"])
    if kind == "provider":
        return mail["provider"] == rule["value"]
    if kind == "binding":
        return mail["binding"] == rule["value"]
    if kind == "session":
        session = mail["session"]
        return rule["value"].lower() in (session["id"].lower(), (session.get("name") or "").lower())
    if kind == "subject_contains":
        return rule["value"].lower() in (mail["content"].get("title") or "").lower()
    people = mail["participants"]
    if kind == "mention":
        pattern = rule["pattern"].lower()
        return any(fnmatch.fnmatchcase(name.lower(), pattern) for name in people["mentions"])
    if kind == "from":
        value = rule["value"].lower()
        return any(value in (p["id"].lower(), (p.get("name") or "").lower()) for p in people["from"])
    if kind == "from_domain":
        domain = rule["domain"].lower()
        hosts = (person["id"].rpartition("@")[2].lower() for person in people["from"])
        return any(host == domain or host.endswith("." + domain) for host in hosts)
    raise SystemExit(f"no such rule: {kind}")


# Commands


def sync(mailbox, workspace):
    here = workspace / ".monoco/mailbox"
    filters = json.loads((here / "config.yaml").read_text())["mailbox"]["filters"]
    inbox = here / "inbox"
    inbox.mkdir(exist_ok=True)
    pulled = 0
    for path in sorted((mailbox / "inbound").glob("*/*.md")):
        mail = parse(path)
        if not any(matches(rule, mail) for rule in filters):
            continue
        target = inbox / path.name
        if target.exists():
            continue
        try:
            os.link(path, target)
        except OSError:
            shutil.copy2(path, target)
        pulled += 1
    (here / "cursor.json").write_text(json.dumps({"last_sync": time.time()}))
    print(f"pulled {pulled}")


def list_newest(mailbox, workspace, limit):
    locks_path = mailbox / ".state/locks.json"
    locks = json.loads(locks_path.read_text()) if locks_path.exists() else {}
    if isinstance(locks.get("locks"), list):  # Written by the courier.
        locks = {lock["id"]: lock for lock in locks["locks"]}
    mails = [parse(path) for path in (workspace / ".monoco/mailbox/inbox").glob("*.md")]
    mails.sort(key=lambda mail: mail["received_at"], reverse=True)
    for mail in mails[:limit]:
        status = locks.get(mail["id"], {}).get("status", "NEW")
        who = ", ".join(person["id"] for person in mail["participants"]["from"])
        print(mail["id"], status, who, mail["session"]["id"], mail["received_at"])


# The daemon


class Locks:
    """Open claims in locks.json, which is read and rewritten completely."""

    def __init__(self, mailbox):
        self.mailbox = mailbox
        self.path = mailbox / ".state/locks.json"
        self.lock = threading.RLock()
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def read(self):
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def write(self, locks):
        self.path.write_text(json.dumps(locks, indent=2))

    def claim(self, mail, agent):
        with self.lock:
            locks = self.read()
            now = datetime.now(timezone.utc)
            held = locks.get(mail)
            if held and held["agent_id"] != agent:
                if datetime.fromisoformat(held["expires_at"]) > now:
                    return 409, {"code": "claimed", "claimed_by": held["agent_id"]}
            until = now + timedelta(seconds=LEASE_S)
            locks[mail] = {
                "id": mail,
                "status": "claimed",
                "agent_id": agent,
                "claimed_at": now.isoformat(),
                "expires_at": until.isoformat(),
            }
            self.write(locks)
            return 200, locks[mail]

    def complete(self, mail, agent):
        with self.lock:
            locks = self.read()
            held = locks.get(mail)
            if held is None:
                return 404, {"code": "not_found"}
            if held["agent_id"] != agent:
                return 409, {"code": "claimed", "claimed_by": held["agent_id"]}
            for path in (self.mailbox / "inbound").glob(f"*/*{mail}*"):
                archive = self.mailbox / "archive" / path.parent.name
                archive.mkdir(parents=True, exist_ok=True)
                shutil.move(path, archive / path.name)
                break
            del locks[mail]
            self.write(locks)
            return 200, {**held, "status": "completed"}


class Debounce:
    """Merge windows in memory, and the thread that writes their Mails."""

    def __init__(self, mailbox, window_ms):
        self.inbound = mailbox / "inbound/webhook"
        self.inbound.mkdir(parents=True, exist_ok=True)
        self.window = window_ms / 1000
        self.lock = threading.Lock()
        self.bursts = {}
        threading.Thread(target=self.run, daemon=True).start()

    def add(self, message):
        session = message["session"]
        key = f'{session["id"]}:{session.get("thread_key") or ""}'
        now = time.monotonic()
        with self.lock:
            burst = self.bursts.setdefault(key, {"first": now, "last": now, "messages": []})
            burst["last"] = now
            burst["messages"].append(message)

    def run(self):
        while True:
            time.sleep(0.02)
            now = time.monotonic()
            with self.lock:
                over = [
                    key
                    for key, burst in self.bursts.items()
                    if now - burst["last"] >= self.window
                    or now - burst["first"] >= MAX_WAIT_MS / 1000
                ]
                bursts = [self.bursts.pop(key) for key in over]
            for burst in bursts:
                self.write(burst["messages"])

    def write(self, messages):
        first, now = messages[0], datetime.now(timezone.utc)
        uid = hashlib.sha256(first["id"].encode()).hexdigest()[:24]
        text = "\n\n".join(message["text"] for message in messages)
        people = list({message["from"]["id"]: message["from"] for message in messages}.values())
        fields = {
            "id": f"webhook_{uid}",
            "provider": "webhook",
            "session": first["session"],
            "participants": {"from": people, "to": [], "mentions": []},
            "timestamp": now.isoformat(),
            "received_at": now.isoformat(),
            "type": "message",
            "content": {"title": first.get("title"), "format": "text/markdown"},
            "artifacts": [],
            "binding": None,
            "metadata": {"messages": [{"id": m["id"], "from": m["from"]} for m in messages]},
        }
        name = f"{now:%Y%m%dT%H%M%S}_webhook_{uid}.md"
        (self.inbound / name).write_text(render(fields, text), encoding="utf-8")


def serve(mailbox, secret, window_ms):
    locks, debounce = Locks(mailbox), Debounce(mailbox, window_ms)
    key = base64.b64decode(secret.removeprefix("whsec_"))

    def receive(headers, body):
        signed = f'{headers["webhook-id"]}.{headers["webhook-timestamp"]}.'.encode() + body
        expected = base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
        if not hmac.compare_digest(headers["webhook-signature"] or "", f"v1,{expected}"):
            return 401, {"code": "unverified"}
        debounce.add(json.loads(body))
        return 200, {"success": True, "action": "buffered"}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            parts = self.path.strip("/").split("/")
            if parts[0] == "webhooks":
                self.answer(*receive(self.headers, body))
            elif parts[-1] in ("claim", "complete"):
                step = getattr(locks, parts[-1])
                self.answer(*step(parts[-2], json.loads(body)["agent_id"]))
            else:
                self.answer(404, {"code": "not_found"})

        def answer(self, status, value):
            body = json.dumps(value).encode()
            head = f"HTTP/1.1 {status} -\r\nContent-Length: {len(body)}\r\n\r\n"
            self.wfile.write(head.encode() + body)

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["sync", "list", "serve"])
    parser.add_argument("--mailbox", type=Path, required=True)
    parser.add_argument("--workspace", type=Path)
    parser.add_argument("--limit", type=int, default=50)
    parser.add_argument("--secret", default="")
    parser.add_argument("--window-ms", type=int, default=5_000)
    args = parser.parse_args()
    if args.command == "sync":
        sync(args.mailbox, args.workspace)
    elif args.command == "list":
        list_newest(args.mailbox, args.workspace, args.limit)
    else:
        serve(args.mailbox, args.secret, args.window_ms)


if __name__ == "__main__":
    sys.exit(main())
