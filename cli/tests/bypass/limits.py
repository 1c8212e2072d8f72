"""What a server's limits look like over shared memory: python3 limits.py PORT, of a server with maxclients 10."""

import socket
import sys
import time

import redis

port = int(sys.argv[1])
r = redis.Redis(port=port, socket_timeout=100)
value = b"0123456789abcdef" * (32 << 20)
r.set("v", value)
assert r.get("v") == value, "512 MB"
r.delete("v")

# Who connects while the server does nothing else is served when it does.
begun = time.time()
sleeper = socket.create_connection(("127.0.0.1", port), 100)
sleeper.sendall(b"DEBUG SLEEP 1\r\n")  # it was taken when the next one is accepted
assert redis.Redis(port=port, socket_timeout=100).ping() and time.time() - begun > 0.9
assert sleeper.recv(100) == b"+OK\r\n"
sleeper.close()

# One client too many hears so and sees the end.
seen, all = 0, []
for _ in range(12):
    s = socket.create_connection(("127.0.0.1", port), 100)
    s.settimeout(100)
    s.sendall(b"PING\r\n")
    seen += b"max number" in s.recv(100)
    all.append(s)
assert seen >= 2, seen
print("all good")
