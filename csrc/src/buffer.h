// A private buffer that fits a core's second cache, and the walk over a longer run of bytes with it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace ebb {

constexpr uint64_t kBufferBytes = uint64_t{64} << 10;  // measured best of 8 KiB to 1 MiB

// On the stack and not initialized: a heap buffer a chunk would be mapped, faulted in and unmapped every
// time.
struct alignas(64) Buffer {
  std::array<char, kBufferBytes> bytes;
  Buffer() noexcept {}  // NOLINT: leaves the bytes as they are
  [[nodiscard]] char* data() noexcept { return bytes.data(); }
};

struct Piece {
  uint64_t offset;
  uint64_t length;
};

// for (const Piece piece : Pieces(bytes)): consecutive pieces of at most one buffer.
class Pieces {
 public:
  explicit Pieces(uint64_t bytes) noexcept : bytes_(bytes) {}

  class Iterator {
   public:
    Iterator(uint64_t offset, uint64_t bytes) noexcept : offset_(offset), bytes_(bytes) {}
    Piece operator*() const noexcept { return {offset_, std::min(kBufferBytes, bytes_ - offset_)}; }
    Iterator& operator++() noexcept {
      offset_ += std::min(kBufferBytes, bytes_ - offset_);
      return *this;
    }
    bool operator!=(const Iterator& other) const noexcept { return offset_ != other.offset_; }

   private:
    uint64_t offset_;
    uint64_t bytes_;
  };
  [[nodiscard]] Iterator begin() const noexcept { return {0, bytes_}; }
  [[nodiscard]] Iterator end() const noexcept { return {bytes_, bytes_}; }

 private:
  uint64_t bytes_;
};

}  // namespace ebb
