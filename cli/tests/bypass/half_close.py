"""Answers at 10.9.0.1:7990 when a client has sent all it has to send, with just that, and closes."""
import select, socket

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
            clients[client.fileno()] = [client, bytearray()]
            poll.register(client, select.EPOLLIN)
            continue
        client, said = clients[fd]
        try:
            some = client.recv(1 << 16)
        except BlockingIOError:
            continue
        said += some
        if not some:
            poll.unregister(fd)
            client.setblocking(True)
            client.sendall(said)
            client.close()
            del clients[fd]
