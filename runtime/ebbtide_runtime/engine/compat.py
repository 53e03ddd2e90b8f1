"""Everything of ours that depends on the version of vLLM. Another version is refused by name, never guessed at."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

SUPPORTED = (0, 32)
_GIB = 1 << 30
_WIDENED = 4
AMX = "EBBTIDE_AMX"
_log = logging.getLogger("vllm.ebbtide")


class UnsupportedEngineError(RuntimeError):
    """This vLLM is not one that Ebbtide knows."""


class IncompleteLoadError(RuntimeError):
    """A load ended without all of the model's parameters."""


def check_version(version: str) -> None:
    """Raise UnsupportedEngineError unless `version` is a release of the supported minor version."""
    parts = version.split(".")
    if not (
        len(parts) >= 2 and parts[0].isdigit() and parts[1].isdigit() and (int(parts[0]), int(parts[1])) == SUPPORTED
    ):
        wanted = ".".join(map(str, SUPPORTED))
        raise UnsupportedEngineError(f"vLLM {version} is not supported: Ebbtide needs vLLM {wanted}.x")


def installed_version() -> str:
    """Return vLLM's version."""
    import vllm

    return str(vllm.__version__)


def adapt(environ: Mapping[str, str] = os.environ) -> None:
    """Adapt this process's vLLM to Ebbtide, before any model is made. Safe to call again."""
    check_version(installed_version())
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        keep_weights_in_parameters()
        if environ.get(AMX) != "1":
            disable_amx()


def keep_weights_in_parameters() -> None:
    """Stop vLLM from packing weights into handles of oneDNN or AMX kernels, where no arena, park or reload sees them.

    Source: `dispatch_cpu_unquantized_gemm` in `model_executor/layers/utils.py`.
    """
    import vllm._custom_ops as ops
    import vllm.model_executor.layers.utils as layers

    ops._supports_onednn = False
    layers.check_cpu_sgl_kernel = _never


def disable_amx() -> None:
    """Make torch say that there is no AMX: on some hosts its first instruction is a SIGILL. EBBTIDE_AMX=1 keeps it."""
    import torch

    if torch.cpu._is_amx_tile_supported():
        _log.info("Ebbtide switched AMX off; set %s=1 to use it.", AMX)
    torch.cpu._is_amx_tile_supported = _never


def _never(*_: object) -> bool:
    return False


def unreachable_weights(modules: Iterable[tuple[str, Any]]) -> list[str]:
    """Name the linear layers whose weights are not in their parameters, so that no sleep would free them."""
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    layers = ((name, module) for name, module in modules if isinstance(module, LinearBase | VocabParallelEmbedding))
    return [name for name, module in layers if not any(each.numel() for each in module.parameters(recurse=False))]


def arena_bytes(config: Any) -> int:
    """Return how much address space weights, or KV, can need. Tight where it is known: to measure it takes its time."""
    files = [file.stat().st_size for file in Path(config.model_config.model).glob("*.safetensors")]
    cache = config.cache_config
    kv = 0 if cache.num_gpu_blocks_override else cache.kv_cache_memory_bytes or 0
    if not files or not kv:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # Weights may be widened when they are loaded, and layers pass through twice.
    return int(max(_WIDENED * sum(files) + _GIB, kv + _GIB))


def barrier() -> None:
    """Wait for every rank of this engine."""
    from vllm.distributed.parallel_state import get_world_group

    get_world_group().barrier()


async def reset_caches(client: Any) -> bool:
    """Forget all that was computed with other weights. False when requests still use the prefix cache."""
    kept = not await client.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    await client.reset_mm_cache()
    await client.reset_encoder_cache()
    return not kept


def dead(client: Any) -> bool:
    """Whether the engine's core has died, as vLLM's monitor of its process saw."""
    return bool(client.errored)


def unfinished(client: Any) -> int:
    """Return how many requests the engine still owes an end."""
    return int(client.get_num_unfinished_requests())


def kv_blocks(client: Any) -> int:
    """Return the number of KV blocks of the device."""
    return int(client.vllm_config.cache_config.num_gpu_blocks or 0)


def cumem_allocations() -> list[Any]:
    """Return cumem's records of what it allocated."""
    from vllm.device_allocator.cumem import CuMemAllocator

    return list(CuMemAllocator.get_instance().pointer_to_data.values())


@contextlib.contextmanager
def loads_completely(model: Any) -> Iterator[None]:
    """Raise IncompleteLoadError when a load inside leaves parameters unloaded: vLLM itself only logs it."""
    wanted = {name.replace(".base_layer.", ".") for name, _ in model.named_parameters()}
    loaded: set[str] = set()
    load = model.load_weights

    def noting(weights: Any) -> Any:
        names = load(weights)
        loaded.update(names or wanted)
        return names

    # On the instance, for this load: the class and vLLM stay as they are.
    model.load_weights = noting
    try:
        yield
    finally:
        del model.load_weights
    if missing := sorted(wanted - loaded):
        raise IncompleteLoadError(f"not loaded: {', '.join(missing[:8])}{' ...' if len(missing) > 8 else ''}")


def server_parser() -> Any:
    """Return the parser of vLLM's API server."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser(prog="vllm"))


def serve(arguments: list[str]) -> None:
    """Run vLLM's API server in this process, one process, until it ends."""
    from vllm.entrypoints.launchers.api_server import entry

    sys.argv = ["vllm", *arguments]
    entry.main()
