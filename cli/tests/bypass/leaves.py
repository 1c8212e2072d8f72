"""Answers at 10.9.0.1:7990 to the first byte of a client with a megabyte, and is gone without a close when all is written."""
import os, select, socket

listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("10.9.0.1", 7990))
listener.listen(16)
listener.setblocking(False)
poll = select.epoll()
poll.register(listener, select.EPOLLIN)
clients = {}
while True:
    for fd, _ in poll.poll():
        if fd == listener.fileno():
            try:
                client, _ = listener.accept()
            except BlockingIOError:
                continue
            client.setblocking(False)
            clients[client.fileno()] = client
            poll.register(client, select.EPOLLIN)
            continue
        said = clients[fd].recv(1)
        if said == b"!":
            clients[fd].setblocking(True)
            clients[fd].sendall(bytes(n % 247 for n in range(1 << 20)))
            os._exit(0)
        if not said:
            poll.unregister(fd)
            clients.pop(fd).close()
