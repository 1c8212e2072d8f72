"""redis-py through the gateway: what applications do with it. Arguments: host, port, `cluster` where the target is one."""

import sys
import threading

import redis

host, port, cluster = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "cluster"


def suite(r):
    r.flushall()
    assert r.set("s", "v") and r.get("s") == "v" and r.incrby("n", 5) == 5
    assert r.mset({f"m{i}": i for i in range(50)}) and r.mget([f"m{i}" for i in range(50)]) == [str(i) for i in range(50)]
    assert r.delete(*[f"m{i}" for i in range(50)]) == 50
    assert r.hset("h", mapping={"a": 1, "b": 2}) == 2 and r.hgetall("h") == {"a": "1", "b": "2"}
    assert r.rpush("l", 1, 2, 3) == 3 and r.lrange("l", 0, -1) == ["1", "2", "3"]
    assert r.zadd("z", {"x": 1.5}) == 1 and r.zscore("z", "x") == 1.5
    entry = r.xadd("st", {"f": "v"})
    assert r.xread({"st": "0"}) == [["st", [(entry, {"f": "v"})]]] or r.xread({"st": "0"}) == {"st": [[(entry, {"f": "v"})]]}
    r.xgroup_create("st", "g", id="0")
    assert len(r.xreadgroup("g", "c", {"st": ">"})) == 1
    assert r.eval("return redis.call('get', KEYS[1])", 1, "s") == "v"
    script = r.register_script("return redis.call('incrby', KEYS[1], ARGV[1])")
    assert script(keys=["n"], args=[2]) == 7
    with r.pipeline(transaction=False) as p:
        for i in range(200):
            p.set(f"p{i}", i)
            p.get(f"p{i}")
        replies = p.execute()
    assert replies[1::2] == [str(i) for i in range(200)]
    with r.pipeline(transaction=True) as p:
        p.watch("{t}a")
        p.multi()
        p.set("{t}a", 1)
        p.incr("{t}a")
        assert p.execute() == [True, 2]
    assert sorted(r.scan_iter("p*", count=20)) == sorted(f"p{i}" for i in range(200))
    other = redis.Redis(host=host, port=port, decode_responses=True)
    threading.Timer(0.2, lambda: other.rpush("q", "x")).start()
    assert r.blpop("q", timeout=5) in (("q", "x"), ["q", "x"])
    with r.pubsub() as sub:
        sub.subscribe("c")
        sub.psubscribe("d*")
        while sub.get_message(timeout=2) is not None:
            pass
        r.publish("c", "one")
        r.publish("dog", "two")
        got = {m["data"] for m in (sub.get_message(timeout=5) for _ in range(2)) if m}
        assert got == {"one", "two"}, got
    try:
        r.execute_command("NOSUCH", "x")
        raise AssertionError("an unknown command was taken")
    except redis.ResponseError as e:
        assert "unknown command" in str(e), e


for protocol in (2, 3):
    suite(redis.Redis(host=host, port=port, decode_responses=True, protocol=protocol))
if cluster:
    r = redis.RedisCluster(host=host, port=port, decode_responses=True)
    for i in range(100):
        assert r.set(f"k{i}", i)
    assert [r.get(f"k{i}") for i in range(100)] == [str(i) for i in range(100)]
print("redis-py", redis.__version__, "ok")
