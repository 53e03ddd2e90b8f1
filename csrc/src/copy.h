// Copies with non-temporal stores: they do not read the destination first, and leave the caches to others.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ebb {

// In this thread. The ranges must not overlap.
void copy_nt(void* destination, const void* source, size_t bytes) noexcept;

void copy_parallel(void* destination, const void* source, uint64_t bytes, int32_t threads);

}  // namespace ebb
