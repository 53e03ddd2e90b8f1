"""The paths of other engines that cannot be done truthfully here: what stands in the way, and what to do instead."""

from __future__ import annotations

BY_FOLDER = (
    "Write the weights as safetensors into a folder, and POST /update_weights_from_disk {model_path, weight_version};"
    " or use ebbtide.Group.borrow() and loan.publish(), which needs no disk."
)
_NCCL = "no process group spans trainer and engines: NCCL takes no two ranks on one device"
_IPC = "CUDA IPC handles do not cross from one pod to another"
_DELTA = "only whole checkpoints are taken, since each is checked as a whole"
_LORA = "adapters are not served"
_MERGE = "Merge the adapter into the weights. " + BY_FOLDER
_ONE_CALL = "an update is one call here: a version is loaded by every engine or by none"
_LABEL = "a version is named when its weights are given, and not afterwards"
_CHECKS = "an engine's weights are not read back"
_CHECKED = "Nothing is to be done: every published tensor is checked by CRC32C as it is loaded."
_WORKERS = "engines with other worker extensions do not run here"

REFUSED: dict[str, tuple[str, str]] = {
    # vLLM
    "/init_weight_transfer_engine": (_NCCL, BY_FOLDER),
    "/shutdown_weight_transfer_engine": (_NCCL, BY_FOLDER),
    "/start_weight_update": (_ONE_CALL, BY_FOLDER),
    "/start_draft_weight_update": ("draft models are not served", BY_FOLDER),
    "/finish_weight_update": (_ONE_CALL, BY_FOLDER),
    "/update_weight_version": (_LABEL, BY_FOLDER),
    "/weight_checker": (_CHECKS, _CHECKED),
    "/get_world_size": (_NCCL, BY_FOLDER),
    "/reset_mm_cache": ("it has no measurable effect", "Sleep or pause: both empty what the engine caches."),
    "/reset_encoder_cache": ("it has no measurable effect", "Sleep or pause: both empty what the engine caches."),
    "/v1/load_lora_adapter": (_LORA, _MERGE),
    "/v1/unload_lora_adapter": (_LORA, _MERGE),
    # prime-rl and SkyRL
    "/init_broadcaster": (_NCCL, BY_FOLDER),
    "/fetch_weights": (_DELTA, BY_FOLDER),
    "/load_lora_adapter": (_LORA, _MERGE),
    "/skyrl/v1/load_lora_adapter": (_LORA, _MERGE),
    # SGLang
    "/update_weights_from_tensor": (_IPC, BY_FOLDER),
    "/update_weights_from_ipc": (_IPC, BY_FOLDER),
    "/update_weights_from_distributed": (_NCCL, BY_FOLDER),
    "/init_weights_update_group": (_NCCL, BY_FOLDER),
    "/destroy_weights_update_group": (_NCCL, BY_FOLDER),
    "/pull_weights": (_DELTA, BY_FOLDER),
    "/post_process_weights": (_ONE_CALL, BY_FOLDER),
    "/weights_checker": (_CHECKS, _CHECKED),
    "/generate": ("the engines are vLLM's", "POST /v1/completions, or vLLM's /inference/v1/generate."),
    # AReaL
    "/areal_update_weights_lora": (_LORA, _MERGE),
    "/areal_update_weights_xccl": (_NCCL, BY_FOLDER),
    "/areal_update_weights_lora_xccl": (_NCCL, BY_FOLDER),
    "/areal_init_weights_update_group": (_NCCL, BY_FOLDER),
    "/areal_set_update_weight_meta": (_NCCL, BY_FOLDER),
    "/areal_set_update_weight_meta_lora": (_LORA, _MERGE),
}

METHODS: dict[str, tuple[str, str]] = {
    "skyrl_sleep_for_weight_sync": (
        "frozen requests cannot be kept while their KV's memory is given away",
        "POST /sleep, which lets them finish or ends them.",
    ),
    "skyrl_wake_for_weight_sync": ("nothing was put to sleep that way", "POST /wake_up?tags=weights."),
    "skyrl_start_weight_update": (_ONE_CALL, BY_FOLDER),
    "skyrl_finish_weight_update": (_ONE_CALL, BY_FOLDER),
    "update_weights_ipc": (_IPC, BY_FOLDER),
    "update_weights_nccl": (_NCCL, BY_FOLDER),
    "update_weights_from_path": (_WORKERS, BY_FOLDER),
}
