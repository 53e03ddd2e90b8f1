#include "process.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "abi.h"
#include "file.h"

namespace ebb {

namespace {

constexpr int kStateField = 3;
constexpr int kStartField = 22;

// The text of field `number` (1-based, from 3 on). The name, field 2, may hold spaces and parentheses, so
// fields are counted from the last parenthesis.
const char* find_field(const char* stat, int number) {
  const char* cursor = std::strrchr(stat, ')');
  for (int field = kStateField; cursor != nullptr && field <= number; ++field) {
    cursor = std::strchr(cursor, ' ');
    if (cursor != nullptr) ++cursor;
  }
  return cursor;
}

}  // namespace

std::optional<uint64_t> process_start(int32_t pid) {
  if (pid <= 0) return std::nullopt;
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) {
    if (errno == ENOENT || errno == ESRCH) return std::nullopt;
    fail_errno("cannot open " + path);
  }
  std::array<char, 1024> text = {};
  const ssize_t got = ::read(file.fd(), text.data(), text.size() - 1);
  if (got < 0 && errno == ESRCH) return std::nullopt;
  if (got < 0) fail_errno("cannot read " + path);
  const char* state = find_field(text.data(), kStateField);
  const char* start = find_field(text.data(), kStartField);
  if (state == nullptr || start == nullptr) fail(EBB_IO, path + " has too few fields");
  if (*state == 'Z' || *state == 'X') return std::nullopt;
  return std::strtoull(start, nullptr, 10);
}

uint64_t pid_namespace() { return inode_of("/proc/self/ns/pid"); }

}  // namespace ebb

int32_t ebb_process_start(int32_t pid, uint64_t* ticks, ebb_error* error) {
  return ebb::guard(error, [&] {
    ebb::required(ticks, "ticks");
    const auto start = ebb::process_start(pid);
    if (!start) ebb::fail(EBB_NOT_FOUND, "no live process " + std::to_string(pid));
    *ticks = *start;
  });
}
