"""What runs before an uninstall: delete every InferenceServer and wait until its pods are gone.

The operator still runs, so a lent device goes back in order. Arguments: seconds to wait, then the namespaces; none is
all of them. Standard library alone.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

GROUP = "/apis/ebbtide.dev/v1alpha1"
PODS = "pods?labelSelector=app.kubernetes.io%2Fname%3Debbtide-engine"
ACCOUNT = Path(os.environ.get("EBBTIDE_ACCOUNT_DIR", "/var/run/secrets/kubernetes.io/serviceaccount"))


def call(method, path):
    """Return the API server's answer; None if what the path names is not there."""
    server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"}
    trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    request = urllib.request.Request(f"{server}{path}", method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, context=trust, timeout=20) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        # No CRD, or somebody was faster.
        if error.code == 404:
            return None
        raise


def names(path):
    """Return "namespace/name" of the objects that a list answers."""
    found = (call("GET", path) or {}).get("items", [])
    return [f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in found]


def left(prefixes):
    """Delete the servers; return them and what is left of their pods."""
    servers = [name for prefix in prefixes for name in names(f"{GROUP}{prefix}/inferenceservers")]
    for namespace, name in (each.split("/") for each in servers):
        call("DELETE", f"{GROUP}/namespaces/{namespace}/inferenceservers/{name}")
    return servers + [f"pod {name}" for prefix in prefixes for name in names(f"/api/v1{prefix}/{PODS}")]


def main(seconds, *namespaces):
    """Exit with the names of what is left when the time is up."""
    prefixes = [f"/namespaces/{each}" for each in namespaces] or [""]
    end = time.monotonic() + float(seconds)
    while remaining := left(prefixes):
        if time.monotonic() > end:
            sys.exit(f"still there after {seconds} s: {', '.join(remaining)}. `helm uninstall --no-hooks` leaves them.")
        print(f"waiting for {', '.join(remaining)}", flush=True)
        time.sleep(1)
    print("no InferenceServer is left")


if __name__ == "__main__":
    main(*sys.argv[1:])
