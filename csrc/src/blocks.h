// Which parts of one region are taken: offsets only, no memory. First fit by address keeps the span low.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>

namespace ebb {

struct Extent {
  uint64_t offset;
  uint64_t size;
};

class Blocks {
 public:
  static constexpr uint64_t kUnit = 64;

  // `size` is a multiple of kUnit.
  explicit Blocks(uint64_t size);

  // `size` is rounded up to kUnit, `align` is a power of two of at least kUnit. Nothing without room.
  std::optional<Extent> allocate(uint64_t size, uint64_t align);
  // The free extent that the block has become a part of; nothing when no live block starts there.
  std::optional<Extent> free(uint64_t offset);

  [[nodiscard]] uint64_t live() const noexcept { return live_; }
  [[nodiscard]] uint64_t count() const noexcept { return taken_.size(); }
  // The end of the highest live block.
  [[nodiscard]] uint64_t span() const noexcept;

 private:
  Extent merge(Extent freed);

  uint64_t size_;
  uint64_t live_ = 0;
  std::map<uint64_t, uint64_t> free_;  // offset to size; no two touch
  std::unordered_map<uint64_t, uint64_t> taken_;
};

}  // namespace ebb
