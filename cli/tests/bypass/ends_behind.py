"""A server at 10.9.0.1:7990 with epoll. `echo`: it answers a client that has sent all it has to send with just that, and
closes. `leave`: it answers the first byte with a megabyte, and is gone without a close when all is written. `linger`: it
answers the first byte, ends its direction, and closes when the client has ended the other one."""
import os, select, socket, sys

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
        try:
            if fd == listener.fileno():
                client, _ = listener.accept()
                client.setblocking(False)
                clients[client.fileno()] = [client, bytearray()]
                poll.register(client, select.EPOLLIN)
                continue
            client, said = clients[fd]
            some = client.recv(1 << 16)
        except BlockingIOError:
            continue
        said += some
        client.setblocking(True)
        if some and sys.argv[1] == "leave":
            client.sendall(bytes(n % 247 for n in range(1 << 20)))
            os._exit(0)
        if some and sys.argv[1] == "linger":
            client.sendall(some)
            client.shutdown(socket.SHUT_WR)
        if not some:
            poll.unregister(fd)
            if sys.argv[1] != "linger":
                client.sendall(said)
            client.close()
            del clients[fd]
        else:
            client.setblocking(False)
