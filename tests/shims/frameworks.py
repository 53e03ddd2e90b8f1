"""What four frameworks send while they train, taken from their source; one row a request, in their order.

Read in: SkyRL a9564572e, slime 624b824a8, AReaL 4aef98d8d, prime-rl 559b44772. Calls that a framework sends to every
server at once are one row here; test_ranks sends them as often as there are servers.
"""

from __future__ import annotations

from tests.shims.sequences import (
    Call,
    asleep,
    committed,
    get,
    impossible,
    loaded,
    post,
    serves,
    stopped,
    weights_awake,
)

SKYRL = "remote_inference_client.RemoteInferenceClient"
SLIME = "sglang_engine.SGLangEngine"
AREAL = "areal/engine"
PRIME = "prime_rl/utils/client.py"

# The way of weights that a group can take, in place of NCCL and of CUDA IPC: what the 501 tells to do.
BY_FOLDER = post(
    "/update_weights_from_disk",
    "what the 501 names",
    loaded,
    body={"model_path": "$path", "weight_version": "$version"},
    has={"success": True},
)

# SkyRL, colocated: worker_dispatch.save_weights_for_sampler.
SKYRL_COLOCATED: list[Call] = [
    post("/sleep?level=2", f"{SKYRL}.sleep", asleep, has={"status": "sleeping", "level": 2}),
    post("/wake_up?tags=weights", f"{SKYRL}.wake_up", weights_awake, has={"status": "sleeping", "tags": ["weights"]}),
    impossible("/init_weight_transfer_engine", f"{SKYRL}.init_weight_update_communicator", weights_awake),
    impossible(
        "/collective_rpc",
        f"{SKYRL}.start_weight_update",
        weights_awake,
        {"method": "skyrl_start_weight_update", "kwargs": {"is_checkpoint_format": True}},
    ),
    impossible(
        "/collective_rpc",
        f"{SKYRL}.update_weights_ipc",
        weights_awake,
        {"method": "update_weights_ipc", "kwargs": {"update_info": {"names": ["norm"], "packed": True}}},
    ),
    impossible(
        "/collective_rpc", f"{SKYRL}.finish_weight_update", weights_awake, {"method": "skyrl_finish_weight_update"}
    ),
    BY_FOLDER,
    post("/wake_up?tags=kv_cache", f"{SKYRL}.wake_up", serves, has={"status": "awake"}),
    post(
        "/reset_prefix_cache",
        f"{SKYRL}.reset_prefix_cache",
        serves,
        body={"reset_running_requests": False},
        has={"success": True},
    ),
]

# SkyRL, not colocated: pause(keep), a broadcast, resume. Only the broadcast cannot be.
SKYRL_PAUSED: list[Call] = [
    post("/pause?mode=keep&clear_cache=false", f"{SKYRL}.pause_generation", stopped, has={"status": "paused"}),
    impossible("/fetch_weights", "delta_strategy.DeltaWeightTransferSender", stopped, {"target_version": 1}),
    impossible(
        "/collective_rpc",
        f"{SKYRL}.sleep_for_weight_sync",
        stopped,
        {"method": "skyrl_sleep_for_weight_sync", "kwargs": {"offload_kv": True}},
    ),
    impossible("/update_weights", f"{SKYRL}.update_named_weights", stopped, {"update_info": {"names": ["norm"]}}),
    post(
        "/update_weights_from_disk",
        "what the 501 names",
        committed,
        body={"model_path": "$path", "weight_version": "$version"},
    ),
    post("/resume", f"{SKYRL}.resume_generation", serves, has={"status": "resumed"}),
]

# slime with offload_rollout and weights by disk: train.train, actor_group._reload_rollout_weights_from_disk.
SLIME_DISK: list[Call] = [
    get("/flush_cache", f"{SLIME}.flush_cache", serves),
    post("/release_memory_occupation", f"{SLIME}.release_memory_occupation", asleep, body={}),
    post("/resume_memory_occupation", "rollout.onload_weights", weights_awake, body={"tags": ["weights"]}),
    post("/pause_generation", f"{SLIME}.pause_generation", weights_awake, body={}),
    get("/flush_cache", f"{SLIME}.flush_cache", weights_awake),
    BY_FOLDER,
    get("/get_weight_version", f"{SLIME}.get_weight_version", loaded, has={"weight_version": "$version"}),
    post("/continue_generation", f"{SLIME}.continue_generation", loaded, body={}),
    post("/resume_memory_occupation", "rollout.onload_kv", serves, body={"tags": ["kv_cache", "cuda_graph"]}),
    get("/get_weight_version", f"{SLIME}.get_weight_version", serves, has={"weight_version": "$version"}),
]

# slime with CUDA IPC (update_weight_from_tensor) or NCCL (update_weight_from_distributed): refused, each by name.
SLIME_TENSOR: list[Call] = [
    post("/release_memory_occupation", f"{SLIME}.release_memory_occupation", asleep, body={}),
    post("/resume_memory_occupation", "rollout.onload_weights", weights_awake, body={"tags": ["weights"]}),
    post("/pause_generation", f"{SLIME}.pause_generation", weights_awake, body={}),
    impossible(
        "/update_weights_from_tensor",
        f"{SLIME}.update_weights_from_tensor",
        weights_awake,
        {"serialized_named_tensors": ["x" * (2 << 20)], "load_format": None, "flush_cache": False},
    ),
    impossible("/init_weights_update_group", f"{SLIME}.init_weights_update_group", weights_awake, {"world_size": 3}),
    impossible(
        "/update_weights_from_distributed", f"{SLIME}.update_weights_from_distributed", weights_awake, {"names": []}
    ),
    impossible("/pull_weights", f"{SLIME}.pull_weights", weights_awake, {"target_version": 1}),
    BY_FOLDER,
    post("/continue_generation", f"{SLIME}.continue_generation", loaded, body={}),
    post("/resume_memory_occupation", "rollout.onload_kv", serves, body={"tags": ["kv_cache", "cuda_graph"]}),
]

# AReaL over vLLM: vllm_remote.VLLMBackend, driven by fsdp_engine._update_weights_from_disk; then offload and onload.
AREAL_VLLM: list[Call] = [
    get("/health", f"{AREAL}/vllm_remote.get_health_check_request", serves),
    post("/areal_pause_generation", f"{AREAL}/vllm_remote.get_pause_request", stopped, body={}),
    post(
        "/areal_update_weights",
        f"{AREAL}/vllm_remote.build_disk_weight_update_requests",
        committed,
        body={"model_path": "$path"},
    ),
    post("/areal_continue_generation", f"{AREAL}/vllm_remote.get_resume_request", serves, body={}),
    post("/sleep", f"{AREAL}/vllm_remote.get_offload_request", asleep, body={}),
    post("/wake_up?tags=weights&tags=kv_cache", f"{AREAL}/vllm_remote.get_onload_request", serves, body={}),
]

# AReaL over SGLang: sglang_remote.SGLangBackend.
AREAL_SGLANG: list[Call] = [
    get("/health", f"{AREAL}/sglang_remote.get_health_check_request", serves),
    post("/release_memory_occupation", f"{AREAL}/sglang_remote.get_offload_request", asleep, body={}),
    post(
        "/resume_memory_occupation",
        f"{AREAL}/sglang_remote.get_onload_request",
        weights_awake,
        body={"tags": ["weights"]},
    ),
    post("/pause_generation", f"{AREAL}/sglang_remote.get_pause_request", weights_awake, body={}),
    post(
        "/update_weights_from_disk",
        f"{AREAL}/sglang_remote.build_disk_weight_update_requests",
        loaded,
        body={"model_path": "$path", "abort_all_requests": True},
    ),
    post("/continue_generation", f"{AREAL}/sglang_remote.get_resume_request", loaded, body={}),
    post("/resume_memory_occupation", f"{AREAL}/sglang_remote.get_onload_request", serves, body={"tags": ["kv_cache"]}),
]

# AReaL's other ways: NCCL and adapters.
AREAL_XCCL: list[Call] = [
    post("/areal_pause_generation", f"{AREAL}/vllm_remote.get_pause_request", stopped, body={}),
    impossible(
        "/areal_init_weights_update_group",
        f"{AREAL}/vllm_remote.build_init_weights_group_request",
        stopped,
        {"rank_offset": 1},
    ),
    impossible(
        "/areal_set_update_weight_meta",
        f"{AREAL}/vllm_remote.build_distributed_weight_update_requests",
        stopped,
        {"names": ["norm"]},
    ),
    impossible("/areal_update_weights_xccl", f"{AREAL}/vllm_remote.build_distributed_weight_update_requests", stopped),
    impossible(
        "/v1/load_lora_adapter", f"{AREAL}/vllm_remote.build_disk_weight_update_requests", stopped, {"lora_path": "/x"}
    ),
    post("/areal_continue_generation", f"{AREAL}/vllm_remote.get_resume_request", serves, body={}),
]

# prime-rl by file system: client.update_weights. It never sleeps.
PRIME_FILES: list[Call] = [
    get("/health", f"{PRIME} check_health", serves),
    post("/pause?mode=keep&clear_cache=false", f"{PRIME} _pause_engines", stopped, has={"status": "paused"}),
    post("/update_weights", f"{PRIME} update_weights", committed, body={"weight_dir": "$path"}, has={"status": "ok"}),
    post("/resume", f"{PRIME} _resume_engines", serves, has={"status": "resumed"}),
    get("/liveness", "inference/vllm/server.liveness", serves),
]

# prime-rl by NCCL: init_nccl_broadcast, and an update without a folder.
PRIME_NCCL: list[Call] = [
    impossible("/init_broadcaster", f"{PRIME} init_nccl_broadcast", serves, {"host": "trainer", "rank_offset": 0}),
    post("/pause?mode=keep&clear_cache=false", f"{PRIME} _pause_engines", stopped),
    impossible("/update_weights", f"{PRIME} update_weights", stopped, {"weight_dir": None}),
    post("/resume", f"{PRIME} _resume_engines", serves),
]

UPDATES = {
    "skyrl-colocated": SKYRL_COLOCATED,
    "skyrl-paused": SKYRL_PAUSED,
    "slime-disk": SLIME_DISK,
    "slime-tensor": SLIME_TENSOR,
    "areal-vllm": AREAL_VLLM,
    "areal-sglang": AREAL_SGLANG,
    "prime-files": PRIME_FILES,
}
"""Sequences at whose end another version serves."""
REFUSALS = {"areal-xccl": AREAL_XCCL, "prime-nccl": PRIME_NCCL}
"""Sequences whose way of weights cannot be: at their end the old version serves."""
