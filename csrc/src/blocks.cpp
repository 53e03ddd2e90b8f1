#include "blocks.h"

#include <iterator>

namespace ebb {

namespace {

uint64_t round_up(uint64_t value, uint64_t to) noexcept { return (value + to - 1) & ~(to - 1); }

}  // namespace

Blocks::Blocks(uint64_t size) : size_(size) { free_.emplace(0, size); }

std::optional<Extent> Blocks::allocate(uint64_t size, uint64_t align) {
  if (size == 0 || size > size_) return std::nullopt;  // the second also keeps the rounding from wrapping
  const uint64_t need = round_up(size, kUnit);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const uint64_t end = it->first + it->second;
    const uint64_t start = round_up(it->first, align);
    if (start >= end || end - start < need) continue;
    // What can fail for want of memory comes first, so that a failure changes nothing.
    const auto taken = taken_.emplace(start, need).first;
    try {
      if (start + need < end) free_.emplace_hint(std::next(it), start + need, end - start - need);
    } catch (...) {
      taken_.erase(taken);
      throw;
    }
    if (start == it->first) {
      free_.erase(it);
    } else {
      it->second = start - it->first;
    }
    live_ += need;
    return Extent{start, need};
  }
  return std::nullopt;
}

std::optional<Extent> Blocks::free(uint64_t offset) {
  const auto block = taken_.find(offset);
  if (block == taken_.end()) return std::nullopt;
  const Extent merged = merge({offset, block->second});
  live_ -= block->second;
  taken_.erase(block);
  return merged;
}

Extent Blocks::merge(Extent freed) {
  auto here = free_.emplace(freed.offset, freed.size).first;
  if (const auto after = std::next(here); after != free_.end() && after->first == freed.offset + freed.size) {
    here->second += after->second;
    free_.erase(after);
  }
  if (here != free_.begin()) {
    if (const auto before = std::prev(here); before->first + before->second == here->first) {
      before->second += here->second;
      free_.erase(here);
      here = before;
    }
  }
  return {here->first, here->second};
}

uint64_t Blocks::span() const noexcept {
  if (free_.empty()) return size_;
  const auto last = std::prev(free_.end());
  return last->first + last->second == size_ ? last->first : size_;
}

}  // namespace ebb
