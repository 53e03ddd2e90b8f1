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

constexpr size_t kCopyLine = 64;

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

// The folded stream, four times as long as each of the three others, which follow it in memory. All begin at
// zero: what was there before is moved over everything and added at the end.
struct Four {
  __m256i first;
  __m256i second;
  Streams others;
};

struct Moves {
  uint32_t whole;
  uint32_t three;
  uint32_t two;
  uint32_t one;
};

constexpr Moves moves_over(uint64_t length) noexcept {
  return {shift_constant(7 * length), shift_constant(3 * length), shift_constant(2 * length),
          shift_constant(length)};
}

// Measured best of many shapes: two vectors and two words of each other stream a turn.
EBB_VECTOR inline void turn(Four& four, const unsigned char* folded, const unsigned char* other,
                            size_t length) noexcept {
  const __m256i constants = _mm256_set_epi64x(fold_high(64), fold_low(64), fold_high(64), fold_low(64));
  four.first = fold_vector(four.first, constants, load_vector(folded));
  four.second = fold_vector(four.second, constants, load_vector(folded + 32));
  step(four.others, other, length);
  step(four.others, other + 8, length);
}

EBB_VECTOR inline uint64_t finish(const Four& four, uint64_t before, const Moves& moves) noexcept {
  const uint64_t moved = carryless(before, moves.whole) ^
                         carryless(reduce(four.first, four.second), moves.three) ^
                         carryless(four.others.first, moves.two) ^ carryless(four.others.second, moves.one);
  return four.others.third ^ _mm_crc32_u64(0, moved);
}

EBB_VECTOR inline Four four_zeros() noexcept {
  return {_mm256_setzero_si256(), _mm256_setzero_si256(), {0, 0, 0}};
}

constexpr size_t kOther = 1024;
constexpr size_t kBlock = 7 * kOther;

EBB_VECTOR uint64_t four_streams(uint64_t crc, const unsigned char* data) noexcept {
  constexpr Moves moves = moves_over(kOther);
  const unsigned char* other = data + 4 * kOther;
  Four four = four_zeros();
  for (size_t i = 0; i < kOther; i += 16) turn(four, data + 4 * i, other + i, kOther);
  return finish(four, crc, moves);
}

EBB_VECTOR inline void copy_line(unsigned char* to, const unsigned char* from) noexcept {
  const __m256i low = load_vector(from);
  const __m256i high = load_vector(from + 32);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), low);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), high);
}

EBB_VECTOR inline void fetch_ahead(const unsigned char* folded, const unsigned char* other,
                                   size_t length) noexcept {
  constexpr size_t kAhead = 1024;  // of the folded stream, which goes four times as fast
  for (size_t line = 0; line < 4; ++line) {
    _mm_prefetch(reinterpret_cast<const char*>(folded + kAhead + line * kCopyLine), _MM_HINT_T0);
  }
  for (size_t i = 0; i < 3; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(other + kAhead / 4 + i * length), _MM_HINT_T0);
  }
}

// Copies while it sums, in as few and long streams as there can be: the checksum then hides behind the
// memory, and four streams keep more of the memory busy than one. `length` is a multiple of a line, `to` is
// aligned to one.
EBB_VECTOR uint64_t copy_streams(uint64_t crc, unsigned char* to, const unsigned char* from,
                                 size_t length) noexcept {
  const unsigned char* other = from + 4 * length;
  unsigned char* other_to = to + 4 * length;
  Four four = four_zeros();
  for (size_t i = 0; i < length; i += kCopyLine) {
    const unsigned char* folded = from + 4 * i;
    fetch_ahead(folded, other + i, length);
    for (size_t k = 0; k < 4; ++k) turn(four, folded + 64 * k, other + i + 16 * k, length);
    for (size_t k = 0; k < 4; ++k) copy_line(to + 4 * i + kCopyLine * k, folded + kCopyLine * k);
    for (size_t k = 0; k < 3; ++k) copy_line(other_to + i + k * length, other + i + k * length);
  }
  _mm_sfence();
  return finish(four, crc, moves_over(length));
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

size_t crc32c_copy_four(void* destination, const void* source, size_t bytes, uint32_t* crc) noexcept {
  const size_t length = bytes / 7 / kCopyLine * kCopyLine;
  *crc = ~static_cast<uint32_t>(copy_streams(static_cast<uint32_t>(~*crc),
                                             static_cast<unsigned char*>(destination),
                                             static_cast<const unsigned char*>(source), length));
  return 7 * length;
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

size_t crc32c_copy_four(void*, const void*, size_t, uint32_t*) noexcept { return 0; }

}  // namespace ebb

#endif
