// CRC32C with the instruction of SSE4.2. It takes three cycles and starts every cycle, so three streams run
// side by side; a carry-less multiplication then moves each stream's result over the bytes that come after
// it.
#include "crc32c.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

namespace ebb {

namespace {

constexpr size_t kLong =
    4096;  // bytes of one stream: three of them and the tables of nobody fit the first cache
constexpr size_t kShort = 256;

// Moving a crc over n bytes multiplies it by x^(8n). The product of two reflected 32-bit polynomials comes
// out shifted by one, and the crc instruction that reduces it multiplies by x^32 more: 33 less to begin with.
constexpr uint32_t shift_constant(uint64_t bytes) noexcept { return power_of_x(8 * bytes - 33); }

__attribute__((target("sse4.2"))) uint64_t load(const unsigned char* bytes) noexcept {
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

__attribute__((target("sse4.2,pclmul"))) uint64_t carryless(uint64_t crc, uint32_t constant) noexcept {
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(crc)),
                                               _mm_cvtsi64_si128(static_cast<long long>(constant)), 0);
  return static_cast<uint64_t>(_mm_cvtsi128_si64(product));
}

template <size_t kBytes>
__attribute__((target("sse4.2,pclmul"))) uint64_t three_streams(uint64_t crc,
                                                                const unsigned char* data) noexcept {
  uint64_t second = 0;
  uint64_t third = 0;
  for (size_t i = 0; i < kBytes; i += 8) {
    crc = _mm_crc32_u64(crc, load(data + i));
    second = _mm_crc32_u64(second, load(data + kBytes + i));
    third = _mm_crc32_u64(third, load(data + 2 * kBytes + i));
  }
  constexpr uint32_t two = shift_constant(2 * kBytes);
  constexpr uint32_t one = shift_constant(kBytes);
  return third ^ _mm_crc32_u64(0, carryless(crc, two) ^ carryless(second, one));
}

}  // namespace

bool crc32c_hardware() noexcept {
  return __builtin_cpu_supports("sse4.2") != 0 && __builtin_cpu_supports("pclmul") != 0;
}

__attribute__((target("sse4.2,pclmul"))) uint32_t crc32c_x86(const void* data, size_t bytes,
                                                             uint32_t seed) noexcept {
  const auto* cursor = static_cast<const unsigned char*>(data);
  uint64_t crc = ~seed;
  for (; bytes >= 3 * kLong; bytes -= 3 * kLong, cursor += 3 * kLong) crc = three_streams<kLong>(crc, cursor);
  for (; bytes >= 3 * kShort; bytes -= 3 * kShort, cursor += 3 * kShort)
    crc = three_streams<kShort>(crc, cursor);
  for (; bytes >= 8; bytes -= 8, cursor += 8) crc = _mm_crc32_u64(crc, load(cursor));
  for (; bytes != 0; --bytes, ++cursor) crc = _mm_crc32_u8(static_cast<uint32_t>(crc), *cursor);
  return ~static_cast<uint32_t>(crc);
}

}  // namespace ebb

#else

namespace ebb {

bool crc32c_hardware() noexcept { return false; }

uint32_t crc32c_x86(const void* data, size_t bytes, uint32_t seed) noexcept {
  return crc32c_portable(data, bytes, seed);
}

}  // namespace ebb

#endif
