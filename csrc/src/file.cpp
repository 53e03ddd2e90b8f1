#include "file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "status.h"

namespace ebb {

namespace {

constexpr mode_t kPrivate = 0600;

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Not stat(): that name is newer than the oldest glibc this must run on.
struct statx status_of(int folder, const char* name, int flags, const std::string& path) {
  struct statx status = {};
  if (::statx(folder, name, flags, STATX_TYPE | STATX_SIZE | STATX_INO, &status) != 0) {
    fail_errno("cannot stat " + path);
  }
  return status;
}

struct statx status_of(int fd, const std::string& path) { return status_of(fd, "", AT_EMPTY_PATH, path); }

}  // namespace

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File open_regular(const std::string& path, int flags) {
  // O_NONBLOCK: opening a pipe that someone put there must not hang.
  File file(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) fail_errno("cannot open " + path);
  if (!S_ISREG(status_of(file.fd(), path).stx_mode)) fail(EBB_FOREIGN, path + " is not a regular file");
  return file;
}

uint64_t file_size(int fd, const std::string& path) { return status_of(fd, path).stx_size; }

uint64_t inode_of(const std::string& path) { return status_of(AT_FDCWD, path.c_str(), 0, path).stx_ino; }

uint64_t read_at(int fd, void* buffer, uint64_t bytes, uint64_t offset, const std::string& path) {
  uint64_t done = 0;
  while (done < bytes) {
    const ssize_t got =
        ::pread(fd, static_cast<char*>(buffer) + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno("cannot read " + path);
    if (got == 0) break;
    done += static_cast<uint64_t>(got);
  }
  return done;
}

void write_at(int fd, const void* buffer, uint64_t bytes, uint64_t offset, const std::string& path) {
  uint64_t done = 0;
  while (done < bytes) {
    const ssize_t put = ::pwrite(fd, static_cast<const char*>(buffer) + done, bytes - done,
                                 static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_errno("cannot write " + path);
    done += static_cast<uint64_t>(put);
  }
}

Unborn::Unborn(std::string path) : path_(std::move(path)) { create(); }

Unborn::~Unborn() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void Unborn::create() {
  file_ = File(::open(folder_of(path_).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kPrivate));
  if (file_) return;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) fail_errno("cannot create " + path_);
  const std::string name = path_ + ".tmp." + std::to_string(::getpid());
  file_ = File(::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, kPrivate));
  if (!file_) fail_errno("cannot create " + name);
  temporary_ = name;
}

void Unborn::link_to(const std::string& name) const {
  const std::string self = "/proc/self/fd/" + std::to_string(file_.fd());
  const char* from = temporary_.empty() ? self.c_str() : temporary_.c_str();
  const int follow = temporary_.empty() ? AT_SYMLINK_FOLLOW : 0;
  if (::linkat(AT_FDCWD, from, AT_FDCWD, name.c_str(), follow) != 0) fail_errno("cannot create " + name);
}

File Unborn::publish(bool replace) {
  if (!replace) {
    link_to(path_);
    return std::move(file_);
  }
  if (temporary_.empty()) {
    // linkat cannot replace, rename can: a name of our own in between.
    const std::string name = path_ + ".tmp." + std::to_string(::getpid());
    ::unlink(name.c_str());
    link_to(name);
    temporary_ = name;
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_errno("cannot replace " + path_);
  temporary_.clear();
  return std::move(file_);
}

}  // namespace ebb
