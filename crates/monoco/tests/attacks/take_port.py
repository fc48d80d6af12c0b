"""Takes the port of a courier as soon as it is free, and waits for requests of its clients.

usage: take_port.py PORT    runs until stdin is closed

Exits with 1 when the attack has succeeded: a client has sent something.
"""

import select
import socket
import sys

port = int(sys.argv[1])
waiting = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
listeners = []
received = b""


def take(family, host):
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError:
        listener.close()
        return False
    listeners.append(listener)
    print(f"took {host}", flush=True)
    return True


print("ready", flush=True)
while True:
    waiting = [address for address in waiting if not take(*address)]
    readable, _, _ = select.select([sys.stdin, *listeners], [], [], 0.005)
    if sys.stdin in readable and not sys.stdin.buffer.read1(1):
        break
    for listener in readable:
        if listener is not sys.stdin:
            client, _ = listener.accept()
            client.settimeout(1)
            try:
                received += client.recv(65536)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            except OSError:
                pass
            client.close()

print(received.decode("latin-1"), flush=True)
sys.exit(1 if received else 0)
