"""redis-py as applications use it, well and badly. Arguments: which part, host, port, and what the part takes.

Each part runs until it is killed. A reply that is an error is what some of them are about, so it ends none.
"""

import random
import sys
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


{
    "keys": keys,
    "smembers": smembers,
    "script": script,
    "wrong_type": wrong_type,
    "per_request": per_request,
    "jobs": jobs,
    "cluster": cluster,
    "queue": queue,
}[part](*rest)
