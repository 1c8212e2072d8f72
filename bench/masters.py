"""Three masters on this machine, for as long as something is measured on them."""
import contextlib
import json
import os
import subprocess
import tempfile


@contextlib.contextmanager
def three_masters(binary):
    """The servers of a flat lab, as `unslow lab ls --format json` lists them."""
    with tempfile.TemporaryDirectory() as labs:
        os.environ["UNSLOW_LABS"] = labs
        up = ["lab", "up", "--flat", "--quiet", "--name", "three", "--kind", "cluster", "--masters", "3", "--replicas", "0"]
        subprocess.run([binary, *up, "--zones", "1"], check=True, capture_output=True)
        try:
            listed = subprocess.run([binary, "lab", "ls", "--format", "json"], check=True, capture_output=True, text=True)
            yield [server for lab in json.loads(listed.stdout)["labs"] for server in lab["servers"]]
        finally:
            subprocess.run([binary, "lab", "down", "--all"], capture_output=True)
