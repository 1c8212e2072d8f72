package io.github.unslow.lettuce;

import io.lettuce.core.RedisURI;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/** A port that leads to a node, as a tunnel's or a container's does. */
final class Tunnel implements AutoCloseable {

    private final ServerSocket port;

    private final RedisURI to;

    private final Set<Socket> open = ConcurrentHashMap.newKeySet();

    private volatile boolean used;

    Tunnel(RedisURI to) throws IOException {
        this.to = to;
        this.port = new ServerSocket(0, 128, InetAddress.getByName("127.0.0.1"));
        begin(this::accept);
    }

    int port() {
        return port.getLocalPort();
    }

    boolean used() {
        return used;
    }

    private static void begin(Runnable task) {
        Thread thread = new Thread(task, "tunnel");
        thread.setDaemon(true);
        thread.start();
    }

    private void accept() {
        try {
            while (true) {
                Socket near = port.accept();
                open.add(near);
                used = true;
                Socket far = new Socket(to.getHost(), to.getPort());
                open.add(far);
                begin(() -> carry(near, far));
                begin(() -> carry(far, near));
            }
        } catch (IOException e) {
            close();
        }
    }

    private void carry(Socket from, Socket to) {
        try (from; to; InputStream bytes = from.getInputStream()) {
            bytes.transferTo(to.getOutputStream());
        } catch (IOException e) {
            // One end closed: so does the other.
        } finally {
            open.remove(from);
        }
    }

    @Override
    public void close() {
        try {
            port.close();
            for (Socket socket : open) {
                socket.close();
            }
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

}
