// Failures inside the library are thrown as Failure and become a status and a message at the C boundary.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "ebbtide.h"

namespace ebb {

class Failure : public std::exception {
 public:
  Failure(ebb_status code, std::string message) : code_(code), message_(std::move(message)) {}
  [[nodiscard]] ebb_status code() const noexcept { return code_; }
  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }

 private:
  ebb_status code_;
  std::string message_;
};

[[noreturn]] void fail(ebb_status code, const std::string& message);
// Adds errno's text; ENOENT, EEXIST, ENOMEM and ENOSPC keep a status of their own, the rest is EBB_IO.
[[noreturn]] void fail_errno(const std::string& what);

// The status of a device function, as a Failure unless it is EBB_OK.
void check_device(int32_t status, const char* device, const char* operation);

int32_t report(ebb_error* error, int32_t code, const char* message) noexcept;

// Runs the body of one C function: no exception leaves.
template <typename Body>
int32_t guard(ebb_error* error, Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return report(error, EBB_OK, "");
  } catch (const Failure& failure) {
    return report(error, failure.code(), failure.what());
  } catch (const std::bad_alloc&) {
    return report(error, EBB_NO_MEMORY, "out of memory");
  } catch (const std::exception& other) {
    return report(error, EBB_INTERNAL, other.what());
  }
}

}  // namespace ebb
