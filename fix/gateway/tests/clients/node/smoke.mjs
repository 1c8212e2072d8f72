// node-redis through the gateway. Arguments: host, port, `cluster` where the target is one.
import assert from "node:assert/strict";
import { createClient, createCluster } from "redis";

const [host, port, kind] = process.argv.slice(2);
for (const RESP of [2, 3]) {
  const client = await createClient({ url: `redis://${host}:${port}`, RESP }).connect();
  await client.flushAll();
  await client.set("s", "v");
  assert.equal(await client.get("s"), "v");
  const many = await Promise.all(Array.from({ length: 500 }, (_, i) => client.set(`k${i}`, `${i}`).then(() => client.get(`k${i}`))));
  assert.deepEqual(many, Array.from({ length: 500 }, (_, i) => `${i}`));
  assert.deepEqual(await client.mGet(["k1", "k2", "none"]), ["1", "2", null]);
  assert.equal(await client.del(["k1", "k2", "k3"]), 3);
  await client.hSet("h", { a: "1", b: "2" });
  assert.deepEqual({ ...(await client.hGetAll("h")) }, { a: "1", b: "2" });
  assert.deepEqual((await client.multi().incr("n").incr("n").exec()), [1, 2]);
  const id = await client.xAdd("st", "*", { f: "v" });
  assert.ok(id.includes("-"));
  assert.equal(await client.eval("return redis.call('get', KEYS[1])", { keys: ["s"] }), "v");
  const sub = await client.duplicate().connect();
  const heard = new Promise((resolve) => sub.subscribe("c", resolve).then(() => client.publish("c", "hello")));
  assert.equal(await heard, "hello");
  const blocked = sub.duplicate();
  await blocked.connect();
  const popped = blocked.blPop("q", 5);
  await client.rPush("q", "x");
  assert.equal((await popped).element, "x");
  for (const c of [client, sub, blocked]) c.destroy();
}
if (kind === "cluster") {
  const cluster = createCluster({ rootNodes: [{ url: `redis://${host}:${port}` }] });
  await cluster.connect();
  for (let i = 0; i < 50; i++) await cluster.set(`c${i}`, `${i}`);
  for (let i = 0; i < 50; i++) assert.equal(await cluster.get(`c${i}`), `${i}`);
  cluster.destroy();
}
console.log("node-redis ok");
