"""The parts of `ebbtide_runtime.launch`: small, and without vLLM or torch, because it waits beside every engine."""
