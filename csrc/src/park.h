// Parked weights: making a checked copy, and filling memory from it.
#pragma once

#include <cstdint>
#include <string>

#include "arena.h"
#include "ebbtide.h"
#include "park_file.h"

namespace ebb {

struct ParkOrder {
  uint64_t version;
  uint64_t layout;
  int32_t threads;
  int32_t nice;
  const uint32_t* cancel;  // NULL: cannot be cancelled
};

class Parked {
 public:
  static Parked create(const std::string& path, Region& region, const ParkOrder& order);
  static Parked open(const std::string& path);

  [[nodiscard]] ebb_parked_info info() const noexcept;
  void verify(uint64_t sample, int32_t threads) const;
  [[nodiscard]] bool matches(Region& region, int32_t threads) const;
  void restore(Region& region, int32_t threads, bool verify) const;

 private:
  explicit Parked(ParkFile park) noexcept : park_(std::move(park)) {}
  void check(uint64_t chunk, uint32_t crc) const;
  void verify_chunk(uint64_t chunk) const;
  void restore_chunk(const Region& region, uint64_t chunk, bool verify) const;

  ParkFile park_;
};

}  // namespace ebb
