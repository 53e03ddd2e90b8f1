// A file's bytes in the address space, to read them without a copy by the kernel.
#pragma once

#include <cstdint>
#include <utility>

namespace ebb {

class Mapping {
 public:
  Mapping() = default;
  // Of a file in memory (tmpfs); of any other file, or where it cannot be, there is none. Reading past the
  // end of a file that was cut short ends the process, so only files that nobody changes are to be mapped.
  static Mapping of_memory_file(int fd, uint64_t bytes) noexcept;
  Mapping(Mapping&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  explicit operator bool() const noexcept { return base_ != nullptr; }
  [[nodiscard]] const char* at(uint64_t offset) const noexcept { return base_ + offset; }
  // Fills the page tables of a part, so that the next read takes no faults. Best effort.
  void populate(uint64_t offset, uint64_t bytes) const noexcept;

 private:
  Mapping(char* base, uint64_t bytes) noexcept : base_(base), bytes_(bytes) {}

  char* base_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace ebb
