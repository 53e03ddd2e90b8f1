"""What `helm test` runs: the gateway answers over TLS by its own CA, and the API server serves our kinds.

Arguments: the gateway's URL, its CA's file. Standard library alone.
"""

import json
import os
import ssl
import sys
import urllib.request
from pathlib import Path

KINDS = {"InferenceServer", "KVCachePolicy"}
ACCOUNT = Path(os.environ.get("EBBTIDE_ACCOUNT_DIR", "/var/run/secrets/kubernetes.io/serviceaccount"))


def get(url, ca, token=""):
    """Return the body of a GET; the certificate is checked by the file `ca`."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    trust = ssl.create_default_context(cafile=str(ca))
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), context=trust, timeout=20) as answer:
        return answer.read()


def main(gateway, ca):
    """Exit with a sentence if something is not as it must be."""
    get(f"{gateway}/health", ca)
    server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    token = (ACCOUNT / "token").read_text()
    served = json.loads(get(f"{server}/apis/ebbtide.dev/v1alpha1", ACCOUNT / "ca.crt", token))
    missing = KINDS - {each["kind"] for each in served["resources"]}
    if missing:
        sys.exit(f"the API server does not serve {', '.join(sorted(missing))}: install the CRDs (crds.install=true)")
    print(f"{gateway} is healthy; the API server serves {', '.join(sorted(KINDS))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
