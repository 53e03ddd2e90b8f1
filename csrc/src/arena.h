// Two regions of memory whose addresses outlive their pages.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>

#include "blocks.h"
#include "ebbtide.h"

namespace ebb {

// One tag's memory. Every method may be called by any thread.
class Region {
 public:
  Region(const ebb_device_ops& device, uint64_t bytes);
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();

  [[nodiscard]] const ebb_device_ops& device() const noexcept { return device_; }
  [[nodiscard]] char* base() const noexcept { return base_; }
  [[nodiscard]] bool holds(const void* address) const noexcept;
  void* allocate(uint64_t size, uint64_t align);
  void free(const void* address);
  void release();
  void restore(int32_t threads, bool prefault);
  ebb_arena_stats stats() const;

  enum class Use {
    kRead,  // several at once; EBB_RELEASED for a released region
    kFill   // alone; a released region is made usable first
  };

  // Keeps the region as it is while its bytes are read or filled: release, restore and other fills answer
  // EBB_BUSY.
  class Hold {
   public:
    // EBB_MISMATCH, before anything is changed, when the span must be `span` and is not.
    Hold(Region& region, Use use, std::optional<uint64_t> span = std::nullopt);
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold();
    // The region's span when the hold began.
    [[nodiscard]] uint64_t span() const noexcept { return span_; }
    // The bytes are not what they should be: the region is released when the hold ends.
    void spoil() noexcept { spoilt_ = true; }

   private:
    Region& region_;
    Use use_;
    uint64_t span_ = 0;
    bool spoilt_ = false;
  };

 private:
  void release_locked();
  void restore_locked();
  void check_not_filling() const;
  void give_back(const Extent& freed) noexcept;
  void check_idle() const;

  const ebb_device_ops& device_;
  uint64_t bytes_;
  char* base_ = nullptr;
  mutable std::mutex mutex_;
  Blocks blocks_;
  uint64_t reach_ = 0;  // the highest end of any block so far
  bool released_ = false;
  uint32_t holds_ = 0;
  bool filling_ = false;
};

class Arena {
 public:
  Arena(const ebb_device_ops& device, uint64_t bytes_per_tag);
  Region& region(int32_t tag);
  [[nodiscard]] const Region& region(int32_t tag) const;
  void free(const void* address);

 private:
  std::array<Region, EBB_TAG_COUNT> regions_;
};

}  // namespace ebb

struct ebb_arena {
  ebb::Arena arena;
};
