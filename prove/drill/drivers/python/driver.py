"""redis-py, one cluster client for all threads. See README.md."""

import sys
import threading
import time

import redis
from redis.cluster import RedisCluster

host, port, threads, every, timeout, keys = sys.argv[1:]
every, timeout, keys = int(every) / 1e6, int(timeout) / 1000, keys.split(",")
client = RedisCluster(host=host, port=int(port), socket_timeout=timeout, socket_connect_timeout=timeout)
client.set(keys[0], "v")
stopped, lock = False, threading.Lock()


def say(line):
    with lock:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def work(number):
    due, n = time.monotonic(), 0
    while not stopped:
        due = max(due + every, time.monotonic() - every)
        time.sleep(max(0, due - time.monotonic()))
        begun, outcome = time.monotonic(), "ok"
        try:
            key = keys[number % len(keys)]
            client.set(key, f"v{n}") if n % 2 == 0 else client.get(key)
        except Exception as e:
            outcome = type(e).__name__
        say(f"{time.time_ns() // 1000} {int((time.monotonic() - begun) * 1e6)} {number} {outcome}")
        n += 1


say(f"ready redis-py {redis.__version__}")
for i in range(int(threads)):
    threading.Thread(target=work, args=(i,), daemon=True).start()
sys.stdin.read()
stopped = True
