// A few threads for one call. The first failure is thrown after all have ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>

namespace ebb {

constexpr int32_t kMaxThreads = 64;

// Numbers from 0 to `count`, each handed out once.
class Counter {
 public:
  explicit Counter(uint64_t count) noexcept : count_(count) {}
  // False when all are taken or a worker failed.
  bool take(uint64_t* number) noexcept;
  void stop() noexcept { next_.store(count_); }

 private:
  uint64_t count_;
  std::atomic<uint64_t> next_{0};
};

// Runs `worker` in `threads` threads (1 to kMaxThreads; the caller's is one of them) until the counter is
// empty. Threads that cannot be started are done without.
void fan_out(int32_t threads, Counter& counter, const std::function<void(uint64_t)>& worker);

// The same with one more thread instead of the caller's, so that `nice` stays with them: a thread cannot take
// its own nice back. EBB_NO_MEMORY when not even one starts.
void fan_out_nice(int32_t threads, int32_t nice, Counter& counter,
                  const std::function<void(uint64_t)>& worker);

}  // namespace ebb
