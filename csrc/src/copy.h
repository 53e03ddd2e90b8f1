// Copies with non-temporal stores: they do not read the destination first, and leave the caches to others.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ebb {

// In this thread. The ranges must not overlap.
void copy_nt(void* destination, const void* source, size_t bytes) noexcept;

// The same, and the CRC32C of the bytes copied, carried on from `seed`: at the speed of the copy alone, where
// it can.
uint32_t copy_nt_crc32c(void* destination, const void* source, size_t bytes, uint32_t seed) noexcept;

void copy_parallel(void* destination, const void* source, uint64_t bytes, int32_t threads);

}  // namespace ebb
