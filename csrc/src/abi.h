// What every C function does with its pointers before it trusts them.
#pragma once

#include <string>

#include "status.h"

namespace ebb {

template <typename T>
T& required(T* pointer, const char* name) {
  if (pointer == nullptr) fail(EBB_INVALID_ARGUMENT, std::string(name) + " is NULL");
  return *pointer;
}

inline std::string path_of(const char* path) {
  if (path == nullptr || *path == '\0') fail(EBB_INVALID_ARGUMENT, "the path is empty");
  return path;
}

}  // namespace ebb
