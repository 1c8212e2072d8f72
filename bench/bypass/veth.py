"""Clients in a separate network namespace, behind a veth."""

import json
import subprocess

HERE, THERE, NETNS = "10.199.0.1", "10.199.0.2", "unslow-offload"


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def there(*words):
    """This command, in the namespace of the clients."""
    return ["ip", "netns", "exec", NETNS, *words]


def network():
    run("ip", "netns", "add", NETNS)
    run("ip", "link", "add", "unslow-a", "type", "veth", "peer", "name", "unslow-b", "netns", NETNS)
    for words in (("addr", "add", f"{HERE}/24", "dev", "unslow-a"), ("link", "set", "unslow-a", "up")):
        run("ip", *words)
    for words in (("addr", "add", f"{THERE}/24", "dev", "unslow-b"), ("link", "set", "unslow-b", "up"), ("link", "set", "lo", "up")):
        run("ip", "-n", NETNS, *words)


def end_network():
    subprocess.run(["ip", "netns", "del", NETNS], check=False)
    subprocess.run(["ip", "link", "del", "unslow-a"], check=False, capture_output=True)


def assert_lent(unslow, stack, ports):
    """That this stack has the clients of the servers on these ports, and of no others."""
    servers = json.loads(run(unslow, "bypass", "ls", "--format", "json"))["servers"]
    its = {server["port"] for server in servers if server["stack_pid"] == stack.pid}
    assert its == ports, f"the stack has {its} instead of {ports}"
