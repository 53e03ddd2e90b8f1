"""`scripts/e2e`: start a cluster, give it the images, run the tests, say where the logs are, and remove it all."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from . import images
from .process import CACHE, ROOT, CommandError, say, timed
from .provider import Kind, Provider, choose


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """Read the command line; what it does not know goes to pytest."""
    parser = argparse.ArgumentParser(prog="scripts/e2e", description=__doc__)
    parser.add_argument("--provider", choices=("kind", "lab"), help="default: lab if EBBTIDE_CLUSTER is set, else kind")
    parser.add_argument("-k", dest="name", default="", help="only tests whose names match, as in pytest")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    return parser.parse_known_args()


def make_images(provider: Provider) -> images.Images:
    """Build what the tests run, the way this provider takes it."""
    return images.by_docker() if isinstance(provider, Kind) else images.by_rootfs()


def environment(provider: Provider, made: images.Images) -> dict[str, str]:
    """Return the environment of the tests."""
    names = {
        "EBBTIDE_E2E_BASE": made.base.name,
        "EBBTIDE_E2E_IMAGE": made.ebbtide.name,
        "EBBTIDE_E2E_ENGINE": made.engine.name,
    }
    return {**os.environ, **provider.env(), **names}


def test(environ: dict[str, str], name: str, rest: list[str]) -> int:
    """Run pytest; return its exit code."""
    pick = ["-k", name] if name else []
    command = [sys.executable, "-m", "pytest", "-v", "--durations=0", "e2e", *pick, *rest]
    return subprocess.run(command, cwd=ROOT, env=environ).returncode


def keep_logs(provider: Provider, environ: dict[str, str]) -> Path:
    """Gather what helps to understand a failure; return the folder."""
    folder = CACHE / "logs" / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    for name, words in {
        "objects.txt": ("get", "all,isv,kvp,leases,events", "-A", "-o", "wide"),
        "pods.txt": ("describe", "pods", "-A"),
    }.items():
        done = subprocess.run(["kubectl", *words], env=environ, text=True, capture_output=True)
        (folder / name).write_text(done.stdout + done.stderr)
    provider.logs(folder)
    return folder


def session(provider: Provider, options: argparse.Namespace, rest: list[str]) -> int:
    """Do one whole run; return the exit code."""
    made = make_images(provider)
    try:
        with timed("cluster up"):
            provider.up()
        for image in made.all():
            with timed(f"import {image.name}"):
                provider.load(image.name, image.rootfs)
        environ = environment(provider, made)
        code = test(environ, options.name, rest)
        if code:
            say(f"failed; logs are in {keep_logs(provider, environ)}")
        return code
    finally:
        if options.keep:
            say("the cluster still runs; its environment: " + " ".join(f"{k}={v}" for k, v in provider.env().items()))
        else:
            with timed("cluster down"):
                provider.down()


def interrupt(number: int, _: FrameType | None) -> None:
    """Turn the end of the process into an exception, so that the cluster is removed on the way out."""
    sys.exit(128 + number)


def main() -> int:
    """Run; return the exit code: 2 if there is nothing to run on, 130 after Ctrl-C."""
    options, rest = arguments()
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    try:
        return session(choose(options.provider), options, rest)
    except CommandError as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        say("interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main())
