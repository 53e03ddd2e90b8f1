// The host as a device: private anonymous pages, huge where the kernel can.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

#include "copy.h"
#include "ebbtide.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace {

constexpr uint32_t kHugePage = 2U << 20;

int32_t outcome(int result) noexcept {
  if (result == 0) return EBB_OK;
  return errno == ENOMEM ? EBB_NO_MEMORY : EBB_IO;
}

// mmap promises 4 KiB only: take a huge page more, and give back what lies before and after.
int32_t reserve(void*, uint64_t bytes, void** base) noexcept {
  const size_t all = bytes + kHugePage;
  void* raw =
      ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return outcome(-1);
  auto* start = static_cast<char*>(raw);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(raw) % kHugePage) % kHugePage;
  if (before != 0) ::munmap(start, before);
  ::munmap(start + before + bytes, all - before - bytes);
  *base = start + before;
  // Both are best effort. A forked child must not keep the pages that a release is to give back.
  (void)::madvise(*base, bytes, MADV_HUGEPAGE);
  (void)::madvise(*base, bytes, MADV_DONTFORK);
  return EBB_OK;
}

int32_t unreserve(void*, void* base, uint64_t bytes) noexcept { return outcome(::munmap(base, bytes)); }

// First the protection: a touch between the two would take pages that nobody gives back.
int32_t release(void*, void* base, uint64_t bytes) noexcept {
  const int32_t status = outcome(::mprotect(base, bytes, PROT_NONE));
  return status == EBB_OK ? outcome(::madvise(base, bytes, MADV_DONTNEED)) : status;
}

int32_t restore(void*, void* base, uint64_t bytes) noexcept {
  return outcome(::mprotect(base, bytes, PROT_READ | PROT_WRITE));
}

int32_t discard(void*, void* base, uint64_t bytes) noexcept {
  return outcome(::madvise(base, bytes, MADV_DONTNEED));
}

int32_t prefault(void*, void* base, uint64_t bytes) noexcept {
  if (::madvise(base, bytes, MADV_POPULATE_WRITE) == 0) return EBB_OK;
  if (errno != EINVAL) return outcome(-1);
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  auto* bytes_of_pages = static_cast<volatile char*>(base);
  for (uint64_t offset = 0; offset < bytes; offset += page) bytes_of_pages[offset] = bytes_of_pages[offset];
  return EBB_OK;
}

int32_t resident(void*, const void* base, uint64_t bytes, uint64_t* resident_bytes) noexcept {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  std::array<unsigned char, 16384> pages;
  uint64_t count = 0;
  for (uint64_t offset = 0; offset < bytes; offset += pages.size() * page) {
    auto* start = const_cast<char*>(static_cast<const char*>(base)) + offset;
    const uint64_t length = bytes - offset < pages.size() * page ? bytes - offset : pages.size() * page;
    if (::mincore(start, length, pages.data()) != 0) return outcome(-1);
    for (uint64_t i = 0; i < (length + page - 1) / page; ++i) count += pages[i] & 1U;
  }
  *resident_bytes = count * page;
  return EBB_OK;
}

int32_t copy_in(void*, void* device, const void* host, uint64_t bytes, uint32_t* crc) noexcept {
  if (crc == nullptr) {
    ebb::copy_nt(device, host, bytes);
  } else {
    *crc = ebb::copy_nt_crc32c(device, host, bytes, *crc);
  }
  return EBB_OK;
}

int32_t copy_out(void*, void* host, const void* device, uint64_t bytes) noexcept {
  __builtin_memcpy(host, device, bytes);
  return EBB_OK;
}

constexpr ebb_device_ops kHost = {EBB_ABI_VERSION, kHugePage, "host",   nullptr,  reserve, unreserve, release,
                                  restore,         discard,   prefault, resident, copy_in, copy_out};

}  // namespace

const ebb_device_ops* ebb_host_device(void) { return &kHost; }
