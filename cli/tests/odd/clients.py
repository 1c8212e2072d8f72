"""redis-py as applications use it, well and badly. Arguments: which part, host, port, and what the part takes.

Each part runs until it is killed. A reply that is an error is what some of them are about, so it ends none.
"""

import random
import sys
import threading
import time

import redis

part, host, port, rest = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]


def connect(**more):
    return redis.Redis(host=host, port=port, **more)


def forever(seconds, body):
    while True:
        try:
            body()
        except redis.exceptions.ResponseError:
            pass
        time.sleep(seconds)


def keys(pattern, seconds):
    r = connect()
    forever(float(seconds), lambda: r.keys(pattern))


def smembers(key, seconds):
    r = connect()
    forever(float(seconds), lambda: r.smembers(key))


def script(loops, seconds):
    """Registered once, then EVALSHA, as the library does it."""
    r = connect()
    walk = r.register_script(
        "local n = 0 for i = 1, tonumber(ARGV[1]) do n = n + #(redis.call('GET', KEYS[1]) or '') end return n"
    )
    forever(float(seconds), lambda: walk(keys=["{t2}script"], args=[loops]))


def wrong_type(key, seconds):
    """A third of the commands take a string for a hash."""
    r = connect()

    def body():
        r.get(key)
        r.get(key)
        r.hincrby(key, "field", 1)

    forever(float(seconds), body)


def per_request(seconds):
    """A new client for each request, which introduces itself and says goodbye."""

    def body():
        r = connect()
        r.incr("requests")
        r.close()

    forever(float(seconds), body)


def jobs(per_s):
    """Short jobs, each with its own client and a few dozen commands."""

    def body():
        r = connect()
        with r.pipeline(transaction=False) as p:
            for i in range(60):
                p.set(f"job:{i}", i, ex=60)
                p.get(f"job:{i}")
            p.execute()
        r.close()

    forever(1 / float(per_s), body)


def cluster(per_s):
    r = redis.RedisCluster(host=host, port=port)
    forever(1 / float(per_s), lambda: r.set(f"user:{random.randrange(1000)}", "v"))


def queue(per_s):
    """A worker that waits in BLPOP, and a producer beside it."""
    r = connect()
    forever(1 / float(per_s), lambda: (r.rpush("queue", "job"), r.blpop("queue", timeout=1)))


def threads(number, body):
    """The same in several threads, as a web server's workers do it."""
    for _ in range(int(number) - 1):
        threading.Thread(target=forever, args=(0.002, body), daemon=True).start()
    forever(0.002, body)


def selects(number):
    """A pool of raw connections, each of which is pointed at the tenant's database before each use."""
    r = connect()

    def body():
        r.execute_command("SELECT", 0)
        r.incr("{t2}requests")

    threads(number, body)


def poll(number):
    """Consumers of a stream's group that ask without BLOCK."""
    r = connect()
    r.xgroup_create("orders", "g", id="$", mkstream=True)
    threads(number, lambda: r.xreadgroup("g", "c", {"orders": ">"}, count=10))


def cache(pages, ttl_ms):
    """Cache-aside in batches: what is missing is computed and written back."""
    r = connect()

    def body():
        with r.pipeline(transaction=False) as p:
            names = [f"{{t2}}:page:{random.randrange(int(pages))}" for _ in range(20)]
            for name in names:
                p.get(name)
            missing = [name for name, page in zip(names, p.execute()) if page is None]
            for name in missing:
                p.set(name, "x" * 500, px=int(ttl_ms))
            p.execute()

    forever(0.005, body)


def eval_each_time(number):
    """A script of some kB, without register_script."""
    r = connect()
    text = "-- what this script is for\n" * 150 + "return redis.call('INCR', KEYS[1])"
    threads(number, lambda: r.eval(text, 1, "{t2}calls"))


def transaction(number):
    """redis-py's own helper, which tries again until no other client came between."""
    r = connect()

    def take(p):
        left = int(p.get("{t2}stock") or 0)
        time.sleep(0.001)
        p.multi()
        p.set("{t2}stock", left + 1)

    threads(number, lambda: r.transaction(take, "{t2}stock"))


def publish(number, seconds):
    r = connect()

    def body():
        with r.pipeline(transaction=False) as p:
            for _ in range(int(number)):
                p.publish("news", "it has begun")
            p.execute()

    forever(float(seconds), body)


def lock(number):
    """redis-py's own lock, told to ask a thousand times a second."""
    r = connect()

    def body():
        with r.lock("{t2}lock", timeout=10, sleep=0.001):
            time.sleep(0.05)

    threads(number, body)


def import_all(number):
    """A pipeline is a transaction unless it is told otherwise."""
    r = connect()

    def body():
        with r.pipeline() as p:
            for i in range(int(number)):
                p.set(f"{{t2}}:row:{i}", "x" * 20)
            p.execute()

    forever(0.01, body)


def mset_all(number, seconds):
    """Prices of everything, written again in one MSET whenever the list comes."""
    r = connect()
    prices = {f"{{t2}}price:{i}": "12.50" for i in range(int(number))}
    forever(float(seconds), lambda: r.mset(prices))


{
    "cache": cache,
    "eval_each_time": eval_each_time,
    "import_all": import_all,
    "lock": lock,
    "mset_all": mset_all,
    "poll": poll,
    "publish": publish,
    "selects": selects,
    "transaction": transaction,
    "keys": keys,
    "smembers": smembers,
    "script": script,
    "wrong_type": wrong_type,
    "per_request": per_request,
    "jobs": jobs,
    "cluster": cluster,
    "queue": queue,
}[part](*rest)
