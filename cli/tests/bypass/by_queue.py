"""A network card in small: a veth pair whose near end, queue0 with 10.77.0.1 in this network namespace, has a queue that can be
polled. A veth has one where it takes what comes by GRO, and that it does where the other end sends packets of one segment.
The other end is in a namespace of its own, from where a client asks.

    by_queue.py PORT     prints "up", waits for a line, sends PING to 10.77.0.1:PORT, prints the answer; ends with its input
"""
import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys

SIOCETHTOOL, SET_TSO, SET_GRO, CLONE_NEWNET = 0x8946, 0x1F, 0x2C, 0x40000000


def setting(interface, command, value):
    data = ctypes.create_string_buffer(struct.pack("II", command, value))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, SIOCETHTOOL, struct.pack("16sP", interface, ctypes.addressof(data)))


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def client(port, ready, go):
    """In the far namespace."""
    os.close(tell_go)
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        os._exit(1)
    os.write(ready, b"1")
    if not os.read(go, 1):
        os._exit(1)
    setting(b"far0", SET_TSO, 0)
    ip("address", "add", "10.77.0.2/24", "dev", "far0")
    ip("link", "set", "far0", "up")
    print("up", flush=True)
    sys.stdin.readline()
    with socket.create_connection(("10.77.0.1", port), timeout=30) as near:
        near.sendall(b"PING\r\n")
        print(near.recv(100).decode().strip(), flush=True)
        sys.stdin.readline()


(ready, tell_ready), (go, tell_go) = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    client(int(sys.argv[1]), tell_ready, go)
    os._exit(0)
os.close(tell_ready)
if not os.read(ready, 1):
    sys.exit("no network namespace")
ip("link", "add", "queue0", "type", "veth", "peer", "name", "far0", "netns", str(child))
setting(b"queue0", SET_GRO, 1)
ip("address", "add", "10.77.0.1/24", "dev", "queue0")
ip("link", "set", "queue0", "up")
os.write(tell_go, b"1")
os.waitpid(child, 0)
