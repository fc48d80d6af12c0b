"""Uploads many large objects with a valid token, and finishes none of them.

usage: fill_memory.py PORT TOKEN

Exits with 1 when the attack has succeeded: the courier holds more than 256 MiB.
"""

import select
import socket
import sys

port, token = int(sys.argv[1]), sys.argv[2]
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

# The courier answers an upload that it does not hold, or closes its connection.
answered, _, _ = select.select([client for client, _ in held], [], [], 1)
size = sum(sent for client, sent in held if client not in answered)
print(f"{len(answered)} of {UPLOADS} uploads rejected, {size >> 20} MiB held", flush=True)
sys.exit(1 if size > 256 << 20 else 0)
