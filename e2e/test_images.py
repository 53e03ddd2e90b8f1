"""The images run where the cluster is strictest: not as root, on a read-only root, under Pod Security `restricted`."""

import json

import pytest

from .images import Images
from .kube import Object, apply, container, finished, kubectl, pod
from .process import CommandError

PYTHON = "/opt/ebbtide/bin/python"
PAYLOAD = "/opt/ebbtide/payload"
# Folders that the engine and its libraries write to, and a name that the user of a foreign image lacks.
WRITABLE = {"HOME": "/tmp", "USER": "ebbtide", "XDG_CACHE_HOME": "/tmp/cache"}


def environment(values: dict[str, str]) -> list[Object]:
    return [{"name": name, "value": value} for name, value in values.items()]


def memory(name: str, size: str) -> Object:
    return {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": size}}


def mount(name: str, path: str) -> Object:
    return {"name": name, "mountPath": path}


def test_the_base_runs(images: Images, space: str) -> None:
    apply(pod("base", space, container("base", images.base.name, ["python3", "-V"])))
    assert finished("base", space).startswith("Python 3.11")


def test_a_pod_that_is_not_restricted_is_refused(images: Images, space: str) -> None:
    root = pod("root", space, container("root", images.base.name, ["true"]))
    root["spec"]["securityContext"] = {}
    with pytest.raises(CommandError, match="violates PodSecurity"):
        apply(root)


def test_ours_imports_and_knows_who_it_is(images: Images, space: str) -> None:
    code = (
        "import os, json, ebbtide_operator, ebbtide_runtime.native as native, kopf, kubernetes;"
        "open('/usr/share/doc/ebbtide/sbom.json').close();"
        "print(json.dumps({'uid': os.getuid(), 'crc': native.crc32c(b'123456789')}))"
    )
    ours = pod("ours", space, container("ours", images.ebbtide.name, [PYTHON, "-c", code]))
    apply(ours)
    said = json.loads(finished("ours", space).splitlines()[-1])
    assert said == {"uid": 65532, "crc": 0xE3069283}


def test_ours_writes_nothing_to_its_root(images: Images, space: str) -> None:
    code = "import pathlib; pathlib.Path('/opt/ebbtide/x').touch()"
    wall = pod("wall", space, container("wall", images.ebbtide.name, [PYTHON, "-c", code]))
    apply(wall)
    with pytest.raises(CommandError, match="Read-only file system"):
        finished("wall", space)


def test_the_payload_makes_a_foreign_engine_ours(images: Images, space: str) -> None:
    """An init container copies the runtime; the engine image's own Python finds our plugin and the library."""
    code = (
        "import json, time; begin = time.monotonic();"
        "import vllm; took = time.monotonic() - begin;"
        "import ebbtide_runtime.native as native;"
        "from importlib.metadata import entry_points;"
        "found = [each.value for each in entry_points(group='vllm.general_plugins')];"
        "print(json.dumps({'vllm': vllm.__version__, 'seconds': round(took, 1), 'plugins': found,"
        " 'from': native.__file__, 'crc': native.crc32c(b'123456789')}))"
    )
    # Elsewhere than in our image: a mount there would hide what is copied.
    payload = container("payload", images.ebbtide.name, ["/opt/ebbtide/copy-payload", "/payload"])
    engine = container("engine", images.engine.name, ["python3", "-c", code])
    payload["volumeMounts"] = [mount("payload", "/payload")]
    engine["volumeMounts"] = [mount("payload", PAYLOAD), mount("tmp", "/tmp")]
    engine["env"] = environment({**WRITABLE, "PYTHONPATH": PAYLOAD})
    volumes = [memory("payload", "64Mi"), {"name": "tmp", "emptyDir": {}}]
    whole = pod("engine", space, engine, initContainers=[payload], volumes=volumes)
    apply(whole)
    said = json.loads(finished("engine", space, seconds=300).splitlines()[-1])
    assert said["vllm"].startswith("0.32.")
    assert "ebbtide_runtime.engine.plugin:register" in said["plugins"]
    assert said["from"].startswith(PAYLOAD)
    assert said["crc"] == 0xE3069283
    print(f"import vllm: {said['seconds']} s")


def test_the_engine_serves_the_tiny_model(images: Images, space: str) -> None:
    """Real vLLM, without anything of ours: what a user's image does by itself."""
    flags = ["--model", "/models/tiny", "--port", "8000", "--enforce-eager", "--max-model-len", "512"]
    engine = container("engine", images.engine.name, ["python3", "-m", "vllm.entrypoints.openai.api_server", *flags])
    # AMX is not usable on every machine that has it; two cores are shared.
    limits = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "2"}
    engine["env"] = environment({**WRITABLE, **limits, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"})
    engine["volumeMounts"] = [mount("tmp", "/tmp"), mount("shm", "/dev/shm")]
    engine["readinessProbe"] = {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 2}
    whole = pod("vllm", space, engine, volumes=[{"name": "tmp", "emptyDir": {}}, memory("shm", "256Mi")])
    apply(whole)
    kubectl("wait", "pod/vllm", "-n", space, "--for=condition=Ready", "--timeout=110s")
    ask = (
        "import json, urllib.request as web;"
        "body = json.dumps({'model': '/models/tiny', 'prompt': 'the quick', 'max_tokens': 4, 'temperature': 0});"
        "kind = {'Content-Type': 'application/json'};"
        "call = web.Request('http://127.0.0.1:8000/v1/completions', body.encode(), kind);"
        "print(json.load(web.urlopen(call))['usage']['completion_tokens'])"
    )
    assert kubectl("exec", "vllm", "-n", space, "--", "python3", "-c", ask).strip() == "4"
