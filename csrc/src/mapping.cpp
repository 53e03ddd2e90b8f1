#include "mapping.h"

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace ebb {

Mapping Mapping::of_memory_file(int fd, uint64_t bytes) noexcept {
  struct statfs system = {};
  if (bytes == 0 || ::fstatfs(fd, &system) != 0) return {};
  if (system.f_type != TMPFS_MAGIC && system.f_type != RAMFS_MAGIC) return {};
  void* base = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return {};
  return {static_cast<char*>(base), bytes};
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

void Mapping::populate(uint64_t offset, uint64_t bytes) const noexcept {
  if (base_ == nullptr) return;
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t start = offset / page * page;
  (void)::madvise(base_ + start, offset + bytes - start, MADV_POPULATE_READ);
}

}  // namespace ebb
