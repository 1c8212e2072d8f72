"""A cluster of any size that answers what clients ask about it: stand-ins for nodes, since a thousand real ones do not
fit on one machine (their bus alone has a million connections). What they say is what Valkey 8 says; they hold no keys.

Usage: cluster.py MASTERS RANGES [old]   (addresses 127.1.0.1 to 127.1.255.255, port 7000; says "ready" when all listen;
old: without RESP3 and sharded subscriptions, as Redis 5.0)
"""
import asyncio
import sys

PORT = 7000
SLOTS = 16384
OLD = sys.argv[3:] == ["old"]


def address(number):
    return f"127.1.{number // 250}.{number % 250 + 1}"


def node_id(number):
    return f"{number:040x}"


def owners(masters, ranges):
    """Slots of each master: RANGES ranges in all, dealt out in turn."""
    ranges = max(masters, min(ranges, SLOTS))
    owned = [[] for _ in range(masters)]
    for number in range(ranges):
        first, end = number * SLOTS // ranges, (number + 1) * SLOTS // ranges
        owned[number % masters].append((first, end - 1))
    return owned


class Cluster:
    def __init__(self, masters, ranges):
        self.owned = owners(masters, ranges)
        self.lines = []
        for number, slots in enumerate(self.owned):
            texts = " ".join(str(a) if a == b else f"{a}-{b}" for a, b in slots)
            self.lines.append(
                f"{node_id(number)} {address(number)}:{PORT}@{PORT + 10000} FLAGS - 0 1700000000000 {number + 1} connected {texts}\n"
            )
        self.plain = [line.replace("FLAGS", "master") for line in self.lines]
        rows = []
        for number, slots in enumerate(self.owned):
            ip = address(number)
            for a, b in slots:
                rows.append(f"*3\r\n:{a}\r\n:{b}\r\n*3\r\n${len(ip)}\r\n{ip}\r\n:{PORT}\r\n$40\r\n{node_id(number)}\r\n")
        self.slots = (f"*{len(rows)}\r\n" + "".join(rows)).encode()

    def nodes(self, myself):
        mine = self.lines[myself].replace("FLAGS", "myself,master")
        return bulk("".join(self.plain[:myself]) + mine + "".join(self.plain[myself + 1 :]))

    def info(self, myself):
        masters = len(self.owned)
        return bulk(
            "cluster_enabled:1\r\ncluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_slots_ok:16384\r\n"
            "cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\n"
            f"cluster_known_nodes:{masters}\r\ncluster_size:{masters}\r\ncluster_current_epoch:{masters}\r\n"
            f"cluster_my_epoch:{myself + 1}\r\n"
        )


def bulk(text):
    data = text.encode()
    return b"$%d\r\n%s\r\n" % (len(data), data)


INFO = bulk(
    "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\nredis_mode:cluster\r\nprocess_id:0\r\n"
    "# Replication\r\nrole:master\r\nconnected_slaves:0\r\nmaster_repl_offset:0\r\n# Cluster\r\ncluster_enabled:1\r\n"
)

HELLO = (
    b"%7\r\n$6\r\nserver\r\n$6\r\nvalkey\r\n$7\r\nversion\r\n$5\r\n8.0.1\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:7\r\n"
    b"$4\r\nmode\r\n$7\r\ncluster\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"
)


def answer(cluster, myself, words):
    name = words[0].upper()
    below = words[1].upper() if len(words) > 1 else b""
    if name == b"PING":
        return b"+PONG\r\n"
    if name == b"INFO":
        return INFO
    if name == b"CLUSTER":
        return {
            b"NODES": lambda: cluster.nodes(myself),
            b"SLOTS": lambda: cluster.slots,
            b"INFO": lambda: cluster.info(myself),
            b"MYID": lambda: bulk(node_id(myself)),
        }.get(below, lambda: b"-ERR unknown subcommand\r\n")()
    if name == b"CLIENT" and below == b"ID":
        return b":7\r\n"
    if name == b"HELLO" and below == b"3" and not OLD:
        return HELLO
    if name == b"SSUBSCRIBE" and not OLD:
        return b">3\r\n$10\r\nssubscribe\r\n$%d\r\n%s\r\n:1\r\n" % (len(words[1]), words[1])
    if name in (b"CLIENT", b"READONLY", b"ASKING", b"AUTH", b"SELECT"):
        return b"+OK\r\n"
    if name == b"ROLE":
        return b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"
    if name == b"COMMAND":
        return b"*1\r\n*6\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n"
    if name == b"GET":
        return b"$-1\r\n"
    return b"-ERR unknown command '%s'\r\n" % name


async def serve(cluster, myself, reader, writer):
    try:
        while header := await reader.readline():
            words = []
            for _ in range(int(header[1:])):
                length = int((await reader.readline())[1:])
                words.append((await reader.readexactly(length + 2))[:-2])
            writer.write(answer(cluster, myself, words))
    except (OSError, ValueError, asyncio.IncompleteReadError):
        pass
    writer.close()


async def main():
    masters, ranges = int(sys.argv[1]), int(sys.argv[2])
    cluster = Cluster(masters, ranges)
    for number in range(masters):
        await asyncio.start_server(
            lambda r, w, number=number: serve(cluster, number, r, w), address(number), PORT, limit=1 << 22
        )
    print("ready", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
