#include "arena.h"

#include <algorithm>
#include <string>

#include "abi.h"
#include "fanout.h"

namespace ebb {

namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 46;  // half of what a process can address

uint64_t checked_size(const ebb_device_ops& device, uint64_t bytes) {
  if (device.abi != EBB_ABI_VERSION)
    fail(EBB_WRONG_ABI, "the device table has ABI " + std::to_string(device.abi));
  if (device.granule < Blocks::kUnit || (device.granule & (device.granule - 1)) != 0) {
    fail(EBB_INVALID_ARGUMENT, "the device's granule is no power of two of at least 64");
  }
  if (bytes == 0 || bytes > kMostBytes) {
    fail(EBB_INVALID_ARGUMENT, "cannot reserve " + std::to_string(bytes) + " bytes a tag");
  }
  return (bytes + device.granule - 1) & ~uint64_t{device.granule - 1};
}

size_t checked_tag(int32_t tag) {
  if (tag < 0 || tag >= EBB_TAG_COUNT) fail(EBB_INVALID_ARGUMENT, "no tag " + std::to_string(tag));
  return static_cast<size_t>(tag);
}

}  // namespace

Region::Region(const ebb_device_ops& device, uint64_t bytes)
    : device_(device), bytes_(checked_size(device, bytes)), blocks_(bytes_) {
  void* base = nullptr;
  check_device(device_.reserve(device_.context, bytes_, &base), device_.name, "reserve");
  base_ = static_cast<char*>(base);
}

Region::~Region() { (void)device_.unreserve(device_.context, base_, bytes_); }

bool Region::holds(const void* address) const noexcept {
  return address >= base_ && address < base_ + bytes_;
}

void* Region::allocate(uint64_t size, uint64_t align) {
  if (size == 0) fail(EBB_INVALID_ARGUMENT, "a block has at least one byte");
  if ((align & (align - 1)) != 0 || align > device_.granule) {
    fail(EBB_INVALID_ARGUMENT, "cannot align to " + std::to_string(align));
  }
  const uint64_t granted =
      size >= device_.granule ? device_.granule : std::max<uint64_t>(align, Blocks::kUnit);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (released_) fail(EBB_RELEASED, "the memory is released");
  check_not_filling();  // the block could lie where the copy still writes
  const auto block = blocks_.allocate(size, granted);
  if (!block) {
    fail(EBB_FULL, "no room for " + std::to_string(size) + " bytes: " + std::to_string(blocks_.live()) +
                       " of " + std::to_string(bytes_) + " are live");
  }
  reach_ = std::max(reach_, block->offset + block->size);
  return base_ + block->offset;
}

void Region::free(const void* address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto freed = blocks_.free(static_cast<uint64_t>(static_cast<const char*>(address) - base_));
  if (!freed) fail(EBB_INVALID_ARGUMENT, "no live block starts at this address");
  // A copy that runs reads up to its span: pages that vanish under it would only read as zero, but wait
  // anyway.
  if (!released_ && holds_ == 0) give_back(*freed);
}

// Best effort: pages that stay are taken again by the next block, or given back by the next release.
void Region::give_back(const Extent& freed) noexcept {
  const uint64_t mask = ~uint64_t{device_.granule - 1};
  const uint64_t start = (freed.offset + device_.granule - 1) & mask;
  const uint64_t end = (freed.offset + freed.size) & mask;
  if (start < end) (void)device_.discard(device_.context, base_ + start, end - start);
}

void Region::check_idle() const {
  if (holds_ != 0) fail(EBB_BUSY, "a copy from or to this memory is running");
}

void Region::check_not_filling() const {
  if (filling_) fail(EBB_BUSY, "this memory is being filled");
}

void Region::release_locked() {
  check_device(device_.release(device_.context, base_, bytes_), device_.name, "release");
  released_ = true;
}

void Region::restore_locked() {
  check_device(device_.restore(device_.context, base_, bytes_), device_.name, "restore");
  released_ = false;
}

void Region::release() {
  const std::lock_guard<std::mutex> lock(mutex_);
  check_idle();
  if (!released_) release_locked();
}

void Region::restore(int32_t threads, bool prefault) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    check_idle();
    if (!released_) return;
    restore_locked();
  }
  if (!prefault) return;
  const Hold hold(*this, Use::kRead);
  Counter granules((hold.span() + device_.granule - 1) / device_.granule);
  fan_out(threads, granules, [&](uint64_t granule) {
    char* start = base_ + granule * device_.granule;
    check_device(device_.prefault(device_.context, start, device_.granule), device_.name, "prefault");
  });
}

ebb_arena_stats Region::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  ebb_arena_stats stats = {};
  stats.reserved = bytes_;
  stats.span = blocks_.span();
  stats.live = blocks_.live();
  stats.released = released_ ? 1 : 0;
  stats.blocks = static_cast<uint32_t>(blocks_.count());
  check_device(device_.resident(device_.context, base_, bytes_, &stats.resident), device_.name,
               "count pages");
  return stats;
}

Region::Hold::Hold(Region& region, Use use, std::optional<uint64_t> span) : region_(region), use_(use) {
  const std::lock_guard<std::mutex> lock(region_.mutex_);
  region_.check_not_filling();
  span_ = region_.blocks_.span();
  if (span && *span != span_) {
    fail(EBB_MISMATCH,
         "the memory spans " + std::to_string(span_) + " bytes, the copy " + std::to_string(*span));
  }
  if (use_ == Use::kFill) {
    region_.check_idle();
    if (region_.released_) region_.restore_locked();
    region_.filling_ = true;
  } else if (region_.released_) {
    fail(EBB_RELEASED, "the memory is released");
  }
  ++region_.holds_;
}

Region::Hold::~Hold() {
  const std::lock_guard<std::mutex> lock(region_.mutex_);
  --region_.holds_;
  if (use_ == Use::kFill) region_.filling_ = false;
  if (!spoilt_) return;
  // A device that fails even here leaves the region usable, with bytes that the caller was told are wrong.
  const ebb_device_ops& device = region_.device_;
  if (device.release(device.context, region_.base_, region_.bytes_) == EBB_OK) region_.released_ = true;
}

Arena::Arena(const ebb_device_ops& device, uint64_t bytes_per_tag)
    : regions_{Region(device, bytes_per_tag), Region(device, bytes_per_tag)} {}

Region& Arena::region(int32_t tag) { return regions_[checked_tag(tag)]; }

const Region& Arena::region(int32_t tag) const { return regions_[checked_tag(tag)]; }

void Arena::free(const void* address) {
  for (Region& region : regions_) {
    if (region.holds(address)) return region.free(address);
  }
  fail(EBB_INVALID_ARGUMENT, "the address is not in this arena");
}

}  // namespace ebb

using ebb::guard;
using ebb::required;

int32_t ebb_arena_create(const ebb_device_ops* ops, uint64_t reserve_bytes_per_tag, ebb_arena** arena,
                         ebb_error* error) {
  return guard(error, [&] {
    required(arena, "arena") = nullptr;
    *arena = new ebb_arena{ebb::Arena(ops == nullptr ? *ebb_host_device() : *ops, reserve_bytes_per_tag)};
  });
}

void ebb_arena_destroy(ebb_arena* arena) { delete arena; }

int32_t ebb_arena_base(const ebb_arena* arena, int32_t tag, void** base, ebb_error* error) {
  return guard(error, [&] { required(base, "base") = required(arena, "arena").arena.region(tag).base(); });
}

int32_t ebb_arena_allocate(ebb_arena* arena, int32_t tag, uint64_t size, uint64_t align, void** address,
                           ebb_error* error) {
  return guard(error, [&] {
    required(address, "address") = nullptr;
    *address = required(arena, "arena").arena.region(tag).allocate(size, align);
  });
}

int32_t ebb_arena_free(ebb_arena* arena, void* address, ebb_error* error) {
  return guard(error, [&] { required(arena, "arena").arena.free(address); });
}

int32_t ebb_arena_release(ebb_arena* arena, int32_t tag, ebb_error* error) {
  return guard(error, [&] { required(arena, "arena").arena.region(tag).release(); });
}

int32_t ebb_arena_restore(ebb_arena* arena, int32_t tag, int32_t threads, int32_t prefault,
                          ebb_error* error) {
  return guard(error, [&] { required(arena, "arena").arena.region(tag).restore(threads, prefault != 0); });
}

int32_t ebb_arena_get_stats(const ebb_arena* arena, int32_t tag, ebb_arena_stats* stats, ebb_error* error) {
  return guard(error, [&] { required(stats, "stats") = required(arena, "arena").arena.region(tag).stats(); });
}
