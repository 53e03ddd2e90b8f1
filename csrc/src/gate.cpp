#include "gate.h"

#include <time.h>
#include <unistd.h>

#include "status.h"

namespace ebb {

namespace {

uint64_t monotonic_ns() noexcept {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000ULL + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

Gate::Gate(Page& page) : page_(page), slot_(page.claim()), pid_(::getpid()) {}

Gate::~Gate() {
  // A forked child has a copy of this object but not the slot.
  if (pid_ == ::getpid()) slot_.identity.store(0);
}

void Gate::check_owner() const {
  if (pid_ != ::getpid())
    fail(EBB_INVALID_STATE, "the gate was registered by another process: fork needs its own");
}

bool Gate::enter() {
  check_owner();
  // Dekker: count first, then look. Either this sees the closed gate, or whoever closed it sees the count.
  // Both sides must be sequentially consistent.
  slot_.inflight.fetch_add(1);
  if (page_.admission()) return true;
  decrement();
  return false;
}

void Gate::leave() {
  check_owner();
  // Before the count: whoever sees nobody inside must see when the last one left.
  if (slot_.inflight.load() != 0) page_.set(EBB_F_LAST_REQUEST, monotonic_ns());
  if (!decrement()) fail(EBB_INVALID_STATE, "nothing is inside the gate");
}

bool Gate::decrement() noexcept {
  uint64_t inside = slot_.inflight.load();
  while (inside != 0) {
    if (slot_.inflight.compare_exchange_weak(inside, inside - 1)) return true;
  }
  return false;
}

}  // namespace ebb
