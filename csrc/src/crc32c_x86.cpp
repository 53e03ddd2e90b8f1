// CRC32C with what x86 has for it. The crc instruction takes three cycles and starts every cycle, so three
// streams run side by side. Where vectors can multiply without carry (VPCLMULQDQ), a fourth stream is folded
// beside them in other parts of the core: half as fast again, or more.
#include "crc32c.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#define EBB_SCALAR __attribute__((target("sse4.2,pclmul")))
#define EBB_VECTOR __attribute__((target("avx2,vpclmulqdq,sse4.2,pclmul")))

namespace ebb {

namespace {

// Moving a crc over n bytes multiplies it by x^(8n). The product of two reflected 32-bit polynomials comes
// out shifted by one, and the crc instruction that reduces it multiplies by x^32 more: 33 less to begin with.
constexpr uint32_t shift_constant(uint64_t bytes) noexcept { return power_of_x(8 * bytes - 33); }

// The same for 64-bit halves of a 128-bit remainder, which is reduced at the end only. The low half stands
// for the higher powers.
constexpr long long fold_constant(uint64_t power) noexcept {
  return static_cast<long long>(uint64_t{power_of_x(power)} << 32);
}
constexpr long long fold_low(uint64_t bytes) noexcept { return fold_constant(8 * bytes + 63); }
constexpr long long fold_high(uint64_t bytes) noexcept { return fold_constant(8 * bytes - 1); }

EBB_SCALAR inline uint64_t load(const unsigned char* bytes) noexcept {
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

EBB_SCALAR inline uint64_t carryless(uint64_t crc, uint32_t constant) noexcept {
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(crc)),
                                               _mm_cvtsi64_si128(static_cast<long long>(constant)), 0);
  return static_cast<uint64_t>(_mm_cvtsi128_si64(product));
}

// Three streams of `length` bytes each, one after the other in memory.
struct Streams {
  uint64_t first;
  uint64_t second;
  uint64_t third;
};

EBB_SCALAR inline void step(Streams& streams, const unsigned char* data, size_t length) noexcept {
  streams.first = _mm_crc32_u64(streams.first, load(data));
  streams.second = _mm_crc32_u64(streams.second, load(data + length));
  streams.third = _mm_crc32_u64(streams.third, load(data + 2 * length));
}

template <size_t kLength>
EBB_SCALAR uint64_t three_streams(uint64_t crc, const unsigned char* data) noexcept {
  Streams streams = {crc, 0, 0};
  for (size_t i = 0; i < kLength; i += 8) step(streams, data + i, kLength);
  constexpr uint32_t two = shift_constant(2 * kLength);
  constexpr uint32_t one = shift_constant(kLength);
  return streams.third ^ _mm_crc32_u64(0, carryless(streams.first, two) ^ carryless(streams.second, one));
}

// A block of the four-stream way: the folded stream, then the three others. Measured best: two vectors and
// two words of each other stream a turn.
constexpr size_t kTurns = 63;  // after the first load
constexpr size_t kFolded = 64 * (kTurns + 1);
constexpr size_t kOther = 16 * kTurns;
constexpr size_t kBlock = kFolded + 3 * kOther;

EBB_VECTOR inline __m256i load_vector(const unsigned char* bytes) noexcept {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
}

EBB_VECTOR inline __m256i fold_vector(__m256i remainder, __m256i constants, __m256i next) noexcept {
  const __m256i low = _mm256_clmulepi64_epi128(remainder, constants, 0x00);
  const __m256i high = _mm256_clmulepi64_epi128(remainder, constants, 0x11);
  return _mm256_xor_si256(_mm256_xor_si256(low, next), high);
}

EBB_VECTOR inline __m128i fold_half(__m128i remainder, __m128i constants, __m128i next) noexcept {
  const __m128i low = _mm_clmulepi64_si128(remainder, constants, 0x00);
  const __m128i high = _mm_clmulepi64_si128(remainder, constants, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, next), high);
}

EBB_VECTOR inline uint64_t reduce(__m256i first, __m256i second) noexcept {
  const __m128i constants = _mm_set_epi64x(fold_high(16), fold_low(16));
  __m128i rest = _mm256_castsi256_si128(first);
  rest = fold_half(rest, constants, _mm256_extracti128_si256(first, 1));
  rest = fold_half(rest, constants, _mm256_castsi256_si128(second));
  rest = fold_half(rest, constants, _mm256_extracti128_si256(second, 1));
  const uint64_t half = _mm_crc32_u64(0, static_cast<uint64_t>(_mm_extract_epi64(rest, 0)));
  return _mm_crc32_u64(half, static_cast<uint64_t>(_mm_extract_epi64(rest, 1)));
}

EBB_VECTOR uint64_t four_streams(uint64_t crc, const unsigned char* data) noexcept {
  const __m256i constants = _mm256_set_epi64x(fold_high(64), fold_low(64), fold_high(64), fold_low(64));
  const unsigned char* other = data + kFolded;
  const __m256i before = _mm256_zextsi128_si256(_mm_cvtsi64_si128(static_cast<long long>(crc)));
  __m256i first = _mm256_xor_si256(load_vector(data), before);
  __m256i second = load_vector(data + 32);
  Streams streams = {0, 0, 0};
  for (size_t turn = 0; turn < kTurns; ++turn) {
    data += 64;
    first = fold_vector(first, constants, load_vector(data));
    second = fold_vector(second, constants, load_vector(data + 32));
    step(streams, other, kOther);
    step(streams, other + 8, kOther);
    other += 16;
  }
  const uint64_t moved = carryless(reduce(first, second), shift_constant(3 * kOther)) ^
                         carryless(streams.first, shift_constant(2 * kOther)) ^
                         carryless(streams.second, shift_constant(kOther));
  return streams.third ^ _mm_crc32_u64(0, moved);
}

EBB_SCALAR uint64_t scalar(uint64_t crc, const unsigned char* data, size_t bytes) noexcept {
  constexpr size_t kLong = 4096;
  constexpr size_t kShort = 256;
  for (; bytes >= 3 * kLong; bytes -= 3 * kLong, data += 3 * kLong) crc = three_streams<kLong>(crc, data);
  for (; bytes >= 3 * kShort; bytes -= 3 * kShort, data += 3 * kShort) crc = three_streams<kShort>(crc, data);
  for (; bytes >= 8; bytes -= 8, data += 8) crc = _mm_crc32_u64(crc, load(data));
  for (; bytes != 0; --bytes, ++data) crc = _mm_crc32_u8(static_cast<uint32_t>(crc), *data);
  return crc;
}

}  // namespace

bool crc32c_has(Crc32cWay way) noexcept {
  if (way == Crc32cWay::kPortable) return true;
  if (__builtin_cpu_supports("sse4.2") == 0 || __builtin_cpu_supports("pclmul") == 0) return false;
  if (way == Crc32cWay::kThreeStreams) return true;
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0;
}

uint32_t crc32c_three(const void* data, size_t bytes, uint32_t seed) noexcept {
  return ~static_cast<uint32_t>(
      scalar(static_cast<uint32_t>(~seed), static_cast<const unsigned char*>(data), bytes));
}

uint32_t crc32c_four(const void* data, size_t bytes, uint32_t seed) noexcept {
  const auto* cursor = static_cast<const unsigned char*>(data);
  uint64_t crc = static_cast<uint32_t>(~seed);
  for (; bytes >= kBlock; bytes -= kBlock, cursor += kBlock) crc = four_streams(crc, cursor);
  return ~static_cast<uint32_t>(scalar(crc, cursor, bytes));
}

}  // namespace ebb

#else

namespace ebb {

bool crc32c_has(Crc32cWay way) noexcept { return way == Crc32cWay::kPortable; }

uint32_t crc32c_three(const void* data, size_t bytes, uint32_t seed) noexcept {
  return crc32c_portable(data, bytes, seed);
}

uint32_t crc32c_four(const void* data, size_t bytes, uint32_t seed) noexcept {
  return crc32c_portable(data, bytes, seed);
}

}  // namespace ebb

#endif
