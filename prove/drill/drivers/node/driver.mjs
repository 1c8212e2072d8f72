// node-redis, one cluster client for all callers. See README.md.
import { createRequire } from "node:module";
import { createCluster } from "redis";

const [host, port, threads, every, timeout, keys] = process.argv.slice(2);
const names = keys.split(",");
const cluster = createCluster({
  rootNodes: [{ url: `redis://${host}:${port}` }],
  defaults: { socket: { connectTimeout: Number(timeout), socketTimeout: 60000 }, commandOptions: { timeout: Number(timeout) } },
});
cluster.on("error", () => {});
await cluster.connect();
await cluster.set(names[0], "v");
const say = (line) => process.stdout.write(line + "\n");
const version = createRequire(import.meta.url)("redis/package.json").version;
say(`ready node-redis ${version}`);
let stopped = false;
const late = (ms) => new Promise((_, reject) => setTimeout(() => reject(new Error("Timeout")), ms).unref());
const work = async (number) => {
  const step = Number(every) / 1000;
  let due = performance.now();
  for (let n = 0; !stopped; n++) {
    due = Math.max(due + step, performance.now() - step);
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, due - performance.now())));
    const begun = performance.now();
    let outcome = "ok";
    try {
      const name = names[number % names.length];
      const command = n % 2 === 0 ? cluster.set(name, `v${n}`) : cluster.get(name);
      await Promise.race([command, late(Number(timeout))]);
    } catch (e) {
      outcome = (e.constructor.name === "Error" ? e.message.split(" ")[0] : e.constructor.name) || "Error";
    }
    const end = Math.round((performance.timeOrigin + performance.now()) * 1000);
    say(`${end} ${Math.round((performance.now() - begun) * 1000)} ${number} ${outcome}`);
  }
};
for (let i = 0; i < Number(threads); i++) work(i);
process.on("unhandledRejection", () => {});
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
