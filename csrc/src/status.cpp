#include "status.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace ebb {

namespace {

ebb_status status_of(int error_number) noexcept {
  switch (error_number) {
    case ENOENT:
      return EBB_NOT_FOUND;
    case EEXIST:
      return EBB_EXISTS;
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
      return EBB_NO_MEMORY;
    case ELOOP:
      return EBB_FOREIGN;
    default:
      return EBB_IO;
  }
}

}  // namespace

void fail(ebb_status code, const std::string& message) { throw Failure(code, message); }

void fail_errno(const std::string& what) {
  const int number = errno;
  throw Failure(status_of(number), what + ": " + std::system_category().message(number));
}

void check_device(int32_t status, const char* device, const char* operation) {
  if (status == EBB_OK) return;
  throw Failure(static_cast<ebb_status>(status), std::string("device ") + device + " failed to " + operation);
}

int32_t report(ebb_error* error, int32_t code, const char* message) noexcept {
  if (error != nullptr) {
    error->code = code;
    std::snprintf(error->message, sizeof error->message, "%s", message);
  }
  return code;
}

}  // namespace ebb

uint32_t ebb_abi_version(void) { return EBB_ABI_VERSION; }

const char* ebb_status_name(int32_t status) {
  static constexpr const char* kNames[] = {
      "EBB_OK",        "EBB_INVALID_ARGUMENT", "EBB_NO_MEMORY", "EBB_IO",
      "EBB_NOT_FOUND", "EBB_EXISTS",           "EBB_FOREIGN",   "EBB_WRONG_ABI",
      "EBB_TRUNCATED", "EBB_CORRUPT",          "EBB_MISMATCH",  "EBB_CANCELLED",
      "EBB_BUSY",      "EBB_RELEASED",         "EBB_FULL",      "EBB_INVALID_STATE",
      "EBB_INTERNAL"};
  constexpr int32_t count = static_cast<int32_t>(sizeof kNames / sizeof kNames[0]);
  return status <= 0 && status > -count ? kNames[-status] : "EBB_UNKNOWN";
}
