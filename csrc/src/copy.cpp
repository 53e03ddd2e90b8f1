#include "copy.h"

#include <algorithm>
#include <cstring>

#include "abi.h"
#include "buffer.h"
#include "crc32c.h"
#include "fanout.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ebb {

namespace {

constexpr size_t kPiece = size_t{2} << 20;  // what one thread takes at a time: one huge page to fault in

#if defined(__x86_64__)

constexpr size_t kLine = 64;
constexpr size_t kSmall = 16 * kLine;  // below this the fence costs more than the stores save

// `destination` is aligned to a line, `lines` counts whole lines.
__attribute__((target("avx2"))) void stream_avx2(char* destination, const char* source,
                                                 size_t lines) noexcept {
  for (; lines != 0; --lines, source += kLine, destination += kLine) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(destination), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(destination + 32), high);
  }
}

void stream_sse2(char* destination, const char* source, size_t lines) noexcept {
  for (; lines != 0; --lines, source += kLine, destination += kLine) {
    for (size_t part = 0; part < kLine; part += 16) {
      const __m128i word = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + part));
      _mm_stream_si128(reinterpret_cast<__m128i*>(destination + part), word);
    }
  }
}

void stream(char* destination, const char* source, size_t lines) noexcept {
  if (__builtin_cpu_supports("avx2") != 0) {
    stream_avx2(destination, source, lines);
  } else {
    stream_sse2(destination, source, lines);
  }
  _mm_sfence();  // or another thread could see a flag before the bytes it stands for
}

#endif

}  // namespace

void copy_nt(void* destination, const void* source, size_t bytes) noexcept {
#if defined(__x86_64__)
  if (bytes >= kSmall) {
    auto* to = static_cast<char*>(destination);
    const auto* from = static_cast<const char*>(source);
    const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
    const size_t lines = (bytes - head) / kLine;
    const size_t done = head + lines * kLine;
    std::memcpy(to, from, head);
    stream(to + head, from + head, lines);
    std::memcpy(to + done, from + done, bytes - done);
    return;
  }
#endif
  std::memcpy(destination, source, bytes);
}

uint32_t copy_nt_crc32c(void* destination, const void* source, size_t bytes, uint32_t seed) noexcept {
  constexpr size_t worth_it = size_t{256} << 10;  // below this the streams are too short to be fetched ahead
  auto* to = static_cast<char*>(destination);
  const auto* from = static_cast<const char*>(source);
  uint32_t crc = seed;
  size_t done = 0;
  const bool aligned = reinterpret_cast<uintptr_t>(to) % 64 == 0;
  if (bytes >= worth_it && aligned && crc32c_has(Crc32cWay::kFourStreams)) {
    done = crc32c_copy_four(to, from, bytes, &crc);
  }
  for (const Piece piece : Pieces(bytes - done)) {
    copy_nt(to + done + piece.offset, from + done + piece.offset, piece.length);
    // After the copy, which reads in order and so is fetched ahead: now the piece is in the cache.
    crc = crc32c(from + done + piece.offset, piece.length, crc);
  }
  return crc;
}

void copy_parallel(void* destination, const void* source, uint64_t bytes, int32_t threads) {
  Counter pieces((bytes + kPiece - 1) / kPiece);
  fan_out(threads, pieces, [&](uint64_t piece) {
    const uint64_t offset = piece * kPiece;
    const size_t length = std::min<uint64_t>(kPiece, bytes - offset);
    copy_nt(static_cast<char*>(destination) + offset, static_cast<const char*>(source) + offset, length);
  });
}

}  // namespace ebb

int32_t ebb_copy(void* destination, const void* source, uint64_t bytes, int32_t threads, ebb_error* error) {
  return ebb::guard(error, [&] {
    if (bytes != 0) {
      ebb::required(static_cast<char*>(destination), "destination");
      ebb::required(static_cast<const char*>(source), "source");
    }
    ebb::copy_parallel(destination, source, bytes, threads);
  });
}
