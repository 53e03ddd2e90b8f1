// CRC32C (Castagnoli), as in iSCSI, ext4 and SSE4.2: crc32c("123456789") is 0xE3069283.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ebb {

// Continues from `seed`, the result for the bytes before; 0 at the start.
uint32_t crc32c(const void* data, size_t bytes, uint32_t seed) noexcept;

// The result for A followed by B, from the results of both, without their bytes.
uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_bytes) noexcept;

// The ways to do it, from slow to fast; crc32c takes the last one that this processor has.
enum class Crc32cWay { kPortable, kThreeStreams, kFourStreams };
bool crc32c_has(Crc32cWay way) noexcept;
uint32_t crc32c_portable(const void* data, size_t bytes, uint32_t seed) noexcept;
uint32_t crc32c_three(const void* data, size_t bytes, uint32_t seed) noexcept;
uint32_t crc32c_four(const void* data, size_t bytes, uint32_t seed) noexcept;

// Copies the first bytes, as many as fit its shape, with non-temporal stores, and carries `crc` on over them;
// how many. Needs kFourStreams, at least one line for each of seven parts, and a destination aligned to 64.
size_t crc32c_copy_four(void* destination, const void* source, size_t bytes, uint32_t* crc) noexcept;

// Arithmetic of polynomials over GF(2), reflected: bit 31 is x^0.
constexpr uint32_t kPolynomial = 0x82F63B78;

constexpr uint32_t multiply(uint32_t a, uint32_t b) noexcept {
  uint32_t product = 0;
  for (int bit = 31; bit >= 0; --bit) {
    if (((a >> bit) & 1U) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1U) != 0 ? kPolynomial : 0U);
  }
  return product;
}

// x^n modulo the polynomial.
constexpr uint32_t power_of_x(uint64_t n) noexcept {
  uint32_t result = 0x80000000U;  // 1
  for (uint32_t square = 0x40000000U; n != 0; n >>= 1, square = multiply(square, square)) {
    if ((n & 1U) != 0) result = multiply(result, square);
  }
  return result;
}

}  // namespace ebb
