// Files by descriptor: owned, never through a symbolic link, whole reads and writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace ebb {

class File {
 public:
  File() = default;
  explicit File(int fd) noexcept : fd_(fd) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  [[nodiscard]] int fd() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// A regular file; EBB_FOREIGN for a symbolic link or anything else.
File open_regular(const std::string& path, int flags);
uint64_t file_size(int fd, const std::string& path);
uint64_t inode_of(const std::string& path);

// Short of `bytes` only at the end of the file; the number read.
uint64_t read_at(int fd, void* buffer, uint64_t bytes, uint64_t offset, const std::string& path);
void write_at(int fd, const void* buffer, uint64_t bytes, uint64_t offset, const std::string& path);

// A file that has no name until it is whole, so that a writer killed midway leaves nothing behind.
class Unborn {
 public:
  explicit Unborn(std::string path);
  Unborn(const Unborn&) = delete;
  Unborn& operator=(const Unborn&) = delete;
  ~Unborn();

  [[nodiscard]] int fd() const noexcept { return file_.fd(); }
  // `replace` false: EBB_EXISTS when the name is taken.
  File publish(bool replace);

 private:
  void create();
  void link_to(const std::string& name) const;

  std::string path_;
  std::string temporary_;  // the name it has in the meantime, where the file system cannot do without one
  File file_;
};

}  // namespace ebb
