"""Where the cluster comes from: `kind` where a Docker engine runs, else the script that EBBTIDE_CLUSTER names.

The script answers `up` (prints the kubeconfig's path), `down`, `env` (prints `export` lines) and
`image NAME TAR` (imports a root file system).
"""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from .process import CACHE, CommandError, run, succeeds

NAME = "ebbtide-e2e"
# Apart from other clusters of the same script. Short: sockets lie there, and their paths end at 107 bytes.
LAB_DIR = "/tmp/ebbtide-e2e"
LAB_PORT = "16443"


class Provider(Protocol):
    """A cluster that can be made and removed."""

    def up(self) -> Path:
        """Start it from nothing and return its kubeconfig's path."""

    def env(self) -> dict[str, str]:
        """Return the environment in which kubectl and helm reach it."""

    def load(self, image: str, rootfs: Path | None) -> None:
        """Make `image` known to its nodes, from `rootfs` where the image is a tar and not in the Docker engine."""

    def logs(self, folder: Path) -> None:
        """Put the logs of its own programs into `folder`."""

    def down(self) -> None:
        """Remove it and all that it left. Safe when there is none."""


@dataclass(frozen=True)
class Kind:
    """A cluster of kind, in the machine's Docker engine."""

    kubeconfig: Path = CACHE / "kind.kubeconfig"

    def up(self) -> Path:
        """See Provider."""
        self.down()
        run("kind", "create", "cluster", "--name", NAME, "--kubeconfig", self.kubeconfig, "--wait", "120s")
        return self.kubeconfig

    def env(self) -> dict[str, str]:
        """See Provider."""
        return {"KUBECONFIG": str(self.kubeconfig)}

    def load(self, image: str, rootfs: Path | None) -> None:
        """See Provider."""
        if rootfs is not None:
            run("docker", "import", rootfs, image)
        run("kind", "load", "docker-image", image, "--name", NAME)

    def logs(self, folder: Path) -> None:
        """See Provider."""
        run("kind", "export", "logs", folder, "--name", NAME)

    def down(self) -> None:
        """See Provider."""
        run("kind", "delete", "cluster", "--name", NAME, "--kubeconfig", self.kubeconfig)


@dataclass(frozen=True)
class Lab:
    """A cluster of the script that EBBTIDE_CLUSTER names."""

    script: Path
    place: dict[str, str] = field(
        default_factory=lambda: {
            "KUBE_LAB_DIR": os.environ.get("KUBE_LAB_DIR", LAB_DIR),
            "KUBE_LAB_PORT": os.environ.get("KUBE_LAB_PORT", LAB_PORT),
        }
    )

    def _call(self, *words: str | Path) -> str:
        return run(self.script, *words, env=self.place)

    def up(self) -> Path:
        """See Provider."""
        # What a killed run left behind would answer in the new one's place.
        self.down()
        return Path(self._call("up").strip().splitlines()[-1])

    def env(self) -> dict[str, str]:
        """See Provider."""
        exports = [shlex.split(line)[1] for line in self._call("env").splitlines() if line.startswith("export ")]
        pairs = dict(export.split("=", 1) for export in exports)
        return {name: value.replace("$PATH", os.environ["PATH"]) for name, value in pairs.items()} | self.place

    def load(self, image: str, rootfs: Path | None) -> None:
        """See Provider."""
        if rootfs is None:
            raise CommandError(f"{image}: the lab takes a root file system, not an image of a Docker engine")
        self._call("image", image, rootfs)

    def logs(self, folder: Path) -> None:
        """See Provider."""
        for part in ("log", "pod-logs"):
            source = Path(self.place["KUBE_LAB_DIR"]) / part
            if source.exists():
                shutil.copytree(source, folder / part, dirs_exist_ok=True)

    def down(self) -> None:
        """See Provider."""
        self._call("down")


def docker_engine() -> bool:
    """Say whether a Docker engine answers; the client alone is no engine."""
    return shutil.which("docker") is not None and succeeds("docker", "info", "--format", "{{.ServerVersion}}")


def choose(name: str | None) -> Provider:
    """Return the provider called `name`; without a name, what this machine has.

    Raises CommandError if there is none, with what to do.
    """
    script = os.environ.get("EBBTIDE_CLUSTER")
    if name is None:
        name = "lab" if script else "kind"
    if name == "lab":
        if not script or not Path(script).exists():
            raise CommandError("provider lab: set EBBTIDE_CLUSTER to the script that starts the cluster")
        return Lab(Path(script).resolve())
    if name != "kind":
        raise CommandError(f"provider {name}: there are kind and lab")
    if not shutil.which("kind") or not docker_engine():
        raise CommandError("provider kind: it needs kind on PATH and a Docker engine that runs (or use --provider lab)")
    return Kind()
