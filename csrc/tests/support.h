// What the tests share: folders of their own, calls that must succeed or fail by name, and a device that can
// fail.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "ebbtide.h"

namespace ebb_test {

using Bytes = std::vector<unsigned char>;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

#define EXPECT_STATUS(expected, call)                                        \
  do {                                                                       \
    ebb_error error = {};                                                    \
    const int32_t status = (call);                                           \
    EXPECT_EQ(status, expected) << ebb_status_name(status) << error.message; \
    EXPECT_EQ(error.code, status);                                           \
    EXPECT_EQ(error.message[0] == '\0', status == EBB_OK);                   \
  } while (false)

#define ASSERT_OK(call)                         \
  do {                                          \
    ebb_error error = {};                       \
    ASSERT_EQ((call), EBB_OK) << error.message; \
  } while (false)

class Folder {
 public:
  explicit Folder(const std::string& root = "/dev/shm") : path_(root + "/ebbtide-test-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] size_t count() const {
    const std::filesystem::directory_iterator entries(path_);
    return static_cast<size_t>(std::distance(begin(entries), end(entries)));
  }

 private:
  std::string path_;
};

inline Bytes random_bytes(size_t size, uint32_t seed = 1) {
  std::mt19937 generator(seed);
  Bytes bytes(size);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(generator());
  return bytes;
}

inline Bytes read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(stream), {});
}

inline void write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

// The host, but for the operation that is told to fail.
class BrokenDevice {
 public:
  BrokenDevice() : ops_(*ebb_host_device()) {
    ops_.name = "broken";
    ops_.context = this;
    ops_.reserve = [](void* self, uint64_t bytes, void** base) { return of(self).reserve(bytes, base); };
    ops_.release = [](void* self, void* base, uint64_t bytes) {
      return of(self).fails("release") ? EBB_IO : host().release(nullptr, base, bytes);
    };
    ops_.restore = [](void* self, void* base, uint64_t bytes) {
      return of(self).fails("restore") ? EBB_NO_MEMORY : host().restore(nullptr, base, bytes);
    };
    ops_.discard = [](void* self, void* base, uint64_t bytes) {
      return of(self).fails("discard") ? EBB_IO : host().discard(nullptr, base, bytes);
    };
    ops_.prefault = [](void* self, void* base, uint64_t bytes) {
      return of(self).fails("prefault") ? EBB_NO_MEMORY : host().prefault(nullptr, base, bytes);
    };
    ops_.copy_in = [](void* self, void* device, const void* source, uint64_t bytes, uint32_t* crc) {
      return of(self).fails("copy_in") ? EBB_IO : host().copy_in(nullptr, device, source, bytes, crc);
    };
    ops_.copy_out = [](void* self, void* target, const void* device, uint64_t bytes) {
      return of(self).fails("copy_out") ? EBB_IO : host().copy_out(nullptr, target, device, bytes);
    };
  }
  BrokenDevice(const BrokenDevice&) = delete;
  BrokenDevice& operator=(const BrokenDevice&) = delete;

  [[nodiscard]] ebb_device_ops& ops() noexcept { return ops_; }
  void fail(const std::string& operation) { broken_ = operation; }

 private:
  static const ebb_device_ops& host() { return *ebb_host_device(); }
  static BrokenDevice& of(void* self) { return *static_cast<BrokenDevice*>(self); }
  [[nodiscard]] bool fails(const char* operation) const { return broken_ == operation; }
  int32_t reserve(uint64_t bytes, void** base) const {
    return fails("reserve") ? EBB_NO_MEMORY : host().reserve(nullptr, bytes, base);
  }

  ebb_device_ops ops_;
  std::string broken_;
};

class ArenaHandle {
 public:
  explicit ArenaHandle(const ebb_device_ops* ops = nullptr, uint64_t bytes = kGiB) {
    ebb_error error = {};
    if (ebb_arena_create(ops, bytes, &arena_, &error) != EBB_OK) ADD_FAILURE() << error.message;
  }
  ArenaHandle(const ArenaHandle&) = delete;
  ArenaHandle& operator=(const ArenaHandle&) = delete;
  ~ArenaHandle() { ebb_arena_destroy(arena_); }

  [[nodiscard]] ebb_arena* get() const noexcept { return arena_; }
  unsigned char* allocate(int32_t tag, uint64_t size, uint64_t align = 64) {
    ebb_error error = {};
    void* address = nullptr;
    if (ebb_arena_allocate(arena_, tag, size, align, &address, &error) != EBB_OK)
      ADD_FAILURE() << error.message;
    return static_cast<unsigned char*>(address);
  }
  // A block with these bytes in it.
  unsigned char* place(int32_t tag, const Bytes& bytes) {
    unsigned char* address = allocate(tag, bytes.size());
    std::copy(bytes.begin(), bytes.end(), address);
    return address;
  }
  [[nodiscard]] ebb_arena_stats stats(int32_t tag) const {
    ebb_arena_stats stats = {};
    ebb_error error = {};
    if (ebb_arena_get_stats(arena_, tag, &stats, &error) != EBB_OK) ADD_FAILURE() << error.message;
    return stats;
  }

 private:
  ebb_arena* arena_ = nullptr;
};

}  // namespace ebb_test
