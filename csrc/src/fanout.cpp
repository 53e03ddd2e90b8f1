#include "fanout.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "status.h"

namespace ebb {

namespace {

class FirstFailure {
 public:
  void keep() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
  void rethrow() {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr failure_;
};

class Crew {
 public:
  ~Crew() { join(); }
  Crew() = default;
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  template <typename Body>
  bool start(const Body& body) {
    try {
      threads_.emplace_back(body);
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

void check(int32_t threads) {
  if (threads < 1 || threads > kMaxThreads) {
    fail(EBB_INVALID_ARGUMENT, "threads must be 1 to " + std::to_string(kMaxThreads));
  }
}

void drain(Counter& counter, FirstFailure& failure, const std::function<void(uint64_t)>& worker) {
  try {
    for (uint64_t number = 0; counter.take(&number);) worker(number);
  } catch (...) {
    counter.stop();
    failure.keep();
  }
}

void be_nice(int32_t nice) noexcept {
  if (nice <= 0) return;
  // On Linux nice belongs to the thread. Best effort: a sandbox may forbid it.
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), nice);
}

}  // namespace

bool Counter::take(uint64_t* number) noexcept {
  *number = next_.fetch_add(1);
  return *number < count_;
}

void fan_out(int32_t threads, Counter& counter, const std::function<void(uint64_t)>& worker) {
  check(threads);
  FirstFailure failure;
  {
    Crew crew;
    for (int32_t i = 1; i < threads; ++i) {
      if (!crew.start([&] { drain(counter, failure, worker); })) break;
    }
    drain(counter, failure, worker);
  }
  failure.rethrow();
}

void fan_out_nice(int32_t threads, int32_t nice, Counter& counter,
                  const std::function<void(uint64_t)>& worker) {
  check(threads);
  FirstFailure failure;
  {
    Crew crew;
    for (int32_t i = 0; i < threads; ++i) {
      const bool started = crew.start([&] {
        be_nice(nice);
        drain(counter, failure, worker);
      });
      if (!started && i == 0) fail(EBB_NO_MEMORY, "cannot start a thread");
    }
  }
  failure.rethrow();
}

}  // namespace ebb
