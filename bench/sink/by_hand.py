"""What a consumer does today: batches of BATCH messages, HSET and EXPIRE each, with redis-py; one call after the other
(sequential) or all of a batch in one pipeline. Prints the median, the 99th percentile and the number of batches, in ms.

    by_hand.py sequential|pipelined|cluster-pipelined HOST PORT FILE BATCH BATCHES
"""

import json
import sys
import time

import redis

how, host, port, path, size, batches = sys.argv[1:]
size, batches = int(size), int(batches)
client = (redis.RedisCluster if how.startswith("cluster") else redis.Redis)(host=host, port=int(port))
took = []
with open(path) as lines:
    for _ in range(batches):
        batch = [line for _, line in zip(range(size), lines)]
        if len(batch) < size:
            break
        begun = time.perf_counter()
        pipe = client if how == "sequential" else client.pipeline(**({} if how.startswith("cluster") else {"transaction": False}))
        for line in batch:
            user = json.loads(line)
            key = "user:%d" % user.pop("id")
            pipe.hset(key, mapping=user)
            pipe.expire(key, 129600)
        if pipe is not client:
            pipe.execute()
        took.append((time.perf_counter() - begun) * 1000)
took.sort()
print("%.2f %.2f %d" % (took[len(took) // 2], took[min(len(took) - 1, int(len(took) * 0.99))], len(took)))
