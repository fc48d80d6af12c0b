"""Uploads many large objects with a valid token, and finishes none of them.

usage: fill_memory.py PORT TOKEN PID

Exits with 1 when the attack has succeeded: the courier holds more than 256 MiB.
"""

import socket
import sys

port, token, pid = int(sys.argv[1]), sys.argv[2], sys.argv[3]
UPLOADS = 40
SIZE = 32 << 20
part = b"x" * (1 << 20)
held = []
for _ in range(UPLOADS):
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    head = (
        f"POST /api/v1/objects HTTP/1.1\r\nHost: localhost:{port}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {SIZE}\r\n\r\n"
    )
    sent = 0
    try:
        client.sendall(head.encode())
        while sent < SIZE - len(part):
            client.sendall(part)
            sent += len(part)
    except OSError:
        pass
    held.append((client, sent))

# Bytes that arrive are written to disk, so the memory of the courier counts, not what was sent.
with open(f"/proc/{pid}/status", encoding="ascii") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
size = sum(sent for _, sent in held)
print(f"{UPLOADS} uploads open, {size >> 20} MiB sent, {peak >> 10} MiB held", flush=True)
sys.exit(1 if peak > 256 << 10 else 0)
