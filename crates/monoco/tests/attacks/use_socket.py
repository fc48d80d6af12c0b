"""Sends a request to the socket of a courier that belongs to another user.

usage: use_socket.py PATH

Exits with 1 when the attack has succeeded: the courier has answered.
"""

import socket
import sys

client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
client.settimeout(20)
client.connect(sys.argv[1])
answer = b""
try:
    client.sendall(b"GET /api/v1/boxes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    while part := client.recv(65536):
        answer += part
except (BrokenPipeError, ConnectionResetError):
    pass
print(answer.decode("latin-1"), flush=True)
sys.exit(1 if answer else 0)
