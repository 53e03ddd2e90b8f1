// One process's side of the admission gate: a counted slot on the control page.
#pragma once

#include <sys/types.h>

#include "page.h"

namespace ebb {

class Gate {
 public:
  explicit Gate(Page& page);
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate();

  bool enter();
  void leave();

 private:
  void check_owner() const;
  bool decrement() noexcept;

  Page& page_;
  GateSlot& slot_;
  pid_t pid_;
};

}  // namespace ebb
