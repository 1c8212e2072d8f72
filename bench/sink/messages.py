"""Messages for bench/sink.sh: N lines, each a user with six fields, ids below KEYS, from a fixed seed."""

import random
import sys

count, keys = int(sys.argv[1]), int(sys.argv[2])
rand = random.Random(1)
cities, plans = ["Paris", "Oslo", "Lima", "Rome"], ["free", "pro"]
for i in range(count):
    print(
        '{"id":%d,"name":"user %d","email":"user%d@example.com","city":"%s","score":%d,"seen":%d,"plan":"%s"}'
        % (rand.randrange(keys), i, i, rand.choice(cities), rand.randrange(1000), 1700000000 + i, rand.choice(plans))
    )
