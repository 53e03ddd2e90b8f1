// Who a process is: pid alone is not enough, because pids are used again.
#pragma once

#include <cstdint>
#include <optional>

namespace ebb {

// Clock ticks since boot; nothing for a process that is gone or a zombie.
std::optional<uint64_t> process_start(int32_t pid);

// The number of this process's pid namespace: a pid says nothing in another one.
uint64_t pid_namespace();

}  // namespace ebb
