#include "page.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "gate.h"
#include "process.h"
#include "status.h"
#include "support.h"

namespace {

using ebb::Gate;
using ebb::Page;
using ebb_test::Bytes;
using ebb_test::Folder;
using ebb_test::read_file;
using ebb_test::write_file;

// Runs `body` in a child and ends with its result. The child of a test must not run the test runner's exit.
template <typename Body>
pid_t in_child(const Body& body) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::_exit(body());
}

void kill_and_wait(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

template <typename Condition>
::testing::AssertionResult until(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition()) return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "deadline passed";
}

ebb_measurement same(uint64_t number) { return {number, number, number, number, number}; }

bool is_whole(const ebb_measurement& found) {
  return found.time_ns == found.answered && found.used_bytes == found.answered &&
         found.host_bytes == found.answered && found.processes == found.answered;
}

class PageTest : public testing::Test {
 protected:
  [[nodiscard]] bool published() const {
    try {
      return page_->measurement().answered > 0;
    } catch (const ebb::Failure&) {
      return false;
    }
  }

  Folder folder_;
  std::string path_ = folder_.file("page");
  std::unique_ptr<Page> page_ = Page::create(path_);
};

TEST_F(PageTest, CreatesWholeFilesOnly) {
  EXPECT_EQ(folder_.count(), 1U);
  EXPECT_EQ(read_file(path_).size(), sizeof(ebb::PageLayout));
  EXPECT_THROW(Page::create(path_), ebb::Failure);
  EXPECT_EQ(folder_.count(), 1U);
}

TEST_F(PageTest, RefusesEveryFlippedBitOfItsHeader) {
  const Bytes good = read_file(path_);
  for (size_t bit = 0; bit < 16 * 8; ++bit) {
    Bytes bad = good;
    bad[bit / 8] = static_cast<unsigned char>(bad[bit / 8] ^ (1U << (bit % 8)));
    write_file(path_, bad);
    ASSERT_THROW(Page::open(path_), ebb::Failure) << bit;
  }
  write_file(path_, good);
  EXPECT_NE(Page::open(path_), nullptr);
}

TEST_F(PageTest, RefusesEveryOtherLength) {
  const Bytes good = read_file(path_);
  for (size_t length = 0; length < good.size(); length += 97) {
    write_file(path_, Bytes(good.begin(), good.begin() + static_cast<long>(length)));
    ASSERT_THROW(Page::open(path_), ebb::Failure) << length;
  }
}

TEST_F(PageTest, RefusesFieldsThatAreNotThere) {
  EXPECT_THROW((void)page_->get(-1), ebb::Failure);
  EXPECT_THROW((void)page_->get(EBB_F_COUNT), ebb::Failure);
  EXPECT_THROW(page_->set(EBB_F_COUNT, 1), ebb::Failure);
  EXPECT_THROW(page_->add(EBB_F_ADMISSION, 1), ebb::Failure);
}

TEST_F(PageTest, AddsFromManyThreadsWithoutLoss) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      for (int step = 0; step < 5000; ++step) page_->add(EBB_F_MEASURE_REQUEST, 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(page_->get(EBB_F_MEASURE_REQUEST), 20000U);
}

TEST_F(PageTest, CountsAcrossProcessesAndForgetsTheDead) {
  page_->set_admission(true);
  Gate mine(*page_);
  ASSERT_TRUE(mine.enter());
  const pid_t child = in_child([this] {
    const std::unique_ptr<Page> page = Page::open(path_);
    Gate gate(*page);
    for (int i = 0; i < 3; ++i) gate.enter();
    ::pause();
    return 0;
  });
  EXPECT_TRUE(until([this] { return page_->inflight() == 4; }));
  kill_and_wait(child);
  EXPECT_EQ(page_->inflight(), 1U);
  mine.leave();
  EXPECT_EQ(page_->inflight(), 0U);
}

// A slot whose pid lives again as another process: only the start time tells.
TEST_F(PageTest, ForgetsASlotOfAnEarlierProcessWithThisPid) {
  page_->set_admission(true);
  ebb::GateSlot& slot = page_->claim();
  slot.inflight.store(5);
  EXPECT_EQ(page_->inflight(), 5U);
  slot.identity.store(slot.identity.load() - 1);
  EXPECT_EQ(page_->inflight(), 0U);
  EXPECT_EQ(slot.identity.load(), 0U);
}

// The agent may run in another pid namespace: it cannot look the pid up, so it must not decide that it is
// dead.
TEST_F(PageTest, KeepsASlotOfAnotherPidNamespace) {
  ebb::GateSlot& slot = page_->claim();
  slot.inflight.store(2);
  slot.identity.store(uint64_t{0x3FFFFF} << 42 | 1);
  slot.pid_namespace.store(ebb::pid_namespace() + 1);
  EXPECT_EQ(page_->inflight(), 2U);
  slot.pid_namespace.store(ebb::pid_namespace());
  EXPECT_EQ(page_->inflight(), 0U);
}

// Words that a test and its children share.
class Shared {
 public:
  Shared() : words_(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {}
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { ::munmap(words_, 4096); }
  std::atomic<uint64_t>& operator[](size_t i) const { return static_cast<std::atomic<uint64_t>*>(words_)[i]; }

 private:
  void* words_;
};

// A child that does something again and again, stops before and after each time, and can be led there by
// single instructions.
class Stepped {
 public:
  template <typename Body>
  explicit Stepped(const Body& body)
      : pid_(in_child([&body] {
          ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
          for (;;) {
            ::raise(SIGSTOP);
            body();
          }
          return 0;
        })) {}
  Stepped(const Stepped&) = delete;
  Stepped& operator=(const Stepped&) = delete;
  ~Stepped() { kill_and_wait(pid_); }

  // Each returns the signal that it stopped with then; SIGTRAP after a step.
  [[nodiscard]] int wait() const {
    int status = 0;
    return ::waitpid(pid_, &status, 0) == pid_ && WIFSTOPPED(status) ? WSTOPSIG(status) : 0;
  }
  [[nodiscard]] int go() const {
    ::ptrace(PTRACE_CONT, pid_, nullptr, nullptr);
    return wait();
  }
  [[nodiscard]] int step() const {
    ::ptrace(PTRACE_SINGLESTEP, pid_, nullptr, nullptr);
    return wait();
  }

 private:
  pid_t pid_;
};

// Dekker, at every single instruction of entering: close the gate right there and count. If the count is 0,
// the request must find the gate closed; if it comes in, the count must have seen it.
TEST_F(PageTest, ClosingAndEnteringNeverMissEachOther) {
  const Shared shared;
  std::atomic<uint64_t>& inside = shared[0];
  std::unique_ptr<Gate> gate;
  const Stepped child([&] {
    if (!gate) gate = std::make_unique<Gate>(*page_);
    if (inside == 1) gate->leave();
    ::raise(SIGSTOP);
    inside = gate->enter() ? 1 : 0;
  });
  ASSERT_EQ(child.wait(), SIGSTOP) << "this test needs ptrace";
  ASSERT_EQ(child.go(), SIGSTOP);
  uint64_t counted = 0;
  uint64_t admitted = 0;
  uint64_t refused = 0;
  bool finished = false;
  for (int steps = 0; !finished; ++steps) {
    ASSERT_LT(steps, 20000);
    page_->set_admission(true);
    for (int i = 0; i < steps && !finished; ++i) finished = child.step() == SIGSTOP;
    page_->set_admission(false);
    const bool seen = page_->inflight() != 0;
    if (!finished) {
      ASSERT_EQ(child.go(), SIGSTOP);
    }
    ASSERT_TRUE(seen || inside == 0) << "missed when closed after " << steps << " instructions";
    counted += seen ? 1 : 0;
    (inside == 1 ? admitted : refused) += 1;
    ASSERT_EQ(child.go(), SIGSTOP);  // it leaves, and waits before the next time
    ASSERT_EQ(page_->inflight(), 0U);
  }
  EXPECT_GT(admitted, 0U);
  EXPECT_GT(refused, 0U);
  EXPECT_GT(counted, admitted) << "somewhere a request is counted that is refused a moment later";
}

TEST_F(PageTest, RegistersFromManyThreadsInSlotsOfTheirOwn) {
  page_->set_admission(true);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([this] {
      for (int round = 0; round < 50; ++round) {
        Gate gate(*page_);
        gate.enter();
        gate.leave();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(page_->inflight(), 0U);
}

TEST_F(PageTest, MeasurementsAreNeverTorn) {
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t number = 1; !stop; ++number) page_->publish(same(number));
  });
  EXPECT_TRUE(until([this] { return published(); }));
  uint64_t last = 0;
  for (int i = 0; i < 50000; ++i) {
    const ebb_measurement found = page_->measurement();
    ASSERT_TRUE(is_whole(found));
    ASSERT_GE(found.answered, last);
    last = found.answered;
  }
  stop = true;
  writer.join();
}

TEST_F(PageTest, AWriterKilledMidwayLeavesTheMeasurementBefore) {
  page_->publish(same(1));
  for (int round = 0; round < 20; ++round) {
    const pid_t child = in_child([this] {
      const std::unique_ptr<Page> page = Page::open(path_);
      for (uint64_t number = 2;; ++number) page->publish(same(number));
      return 0;
    });
    const uint64_t before = page_->measurement().answered;
    EXPECT_TRUE(until([&] { return page_->measurement().answered != before; }));
    kill_and_wait(child);
    ASSERT_TRUE(is_whole(page_->measurement()));
  }
}

// What a reader sees while the writer is at any single instruction, and so wherever it may be killed.
TEST_F(PageTest, AReaderSeesOneMeasurementAtEveryInstructionOfTheWriter) {
  page_->publish(same(1));
  uint64_t number = 1;
  const Stepped child([&] { page_->publish(same(++number)); });
  ASSERT_EQ(child.wait(), SIGSTOP) << "this test needs ptrace";
  for (uint64_t round = 1; round < 4; ++round) {
    uint64_t before = round;
    for (int signal = SIGTRAP; signal == SIGTRAP; signal = child.step()) {
      const ebb_measurement found = page_->measurement();
      ASSERT_TRUE(is_whole(found));
      ASSERT_TRUE(found.answered == before || found.answered == round + 1);
      before = found.answered;
    }
    ASSERT_EQ(page_->measurement().answered, round + 1);
  }
}

TEST_F(PageTest, ADamagedMeasurementIsRefusedNotReturned) {
  page_->publish(same(1));
  Bytes bytes = read_file(path_);
  constexpr size_t cells = 64 + 256 + 64;
  bytes[cells + 64 + 3] ^= 1;  // the first measurement is in cell 1
  const int fd = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_EQ(::pwrite(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  ::close(fd);
  try {
    (void)page_->measurement();
    FAIL();
  } catch (const ebb::Failure& failure) {
    EXPECT_EQ(failure.code(), EBB_CORRUPT);
  }
}

TEST(PageAbi, ChecksItsPointers) {
  const Folder folder;
  const std::string path = folder.file("page");
  ebb_page* page = nullptr;
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_page_create(nullptr, &page, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_page_create("", &page, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_page_create(path.c_str(), nullptr, &error));
  EXPECT_EQ(folder.count(), 0U);
  EXPECT_STATUS(EBB_OK, ebb_page_create(path.c_str(), &page, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_page_get(page, EBB_F_EPOCH, nullptr, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_page_set(nullptr, EBB_F_EPOCH, 1, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_page_add(page, EBB_F_EPOCH, 1, nullptr, &error));
  uint64_t value = 9;
  EXPECT_STATUS(EBB_OK, ebb_page_get(page, EBB_F_EPOCH, &value, &error));
  EXPECT_EQ(value, 0U);
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_page_publish(page, nullptr, &error));
  ebb_measurement found = {};
  EXPECT_STATUS(EBB_NOT_FOUND, ebb_page_measurement(page, &found, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_gate_register(page, nullptr, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_gate_leave(nullptr, &error));
  ebb_page_close(page);
  ebb_page_close(nullptr);
  ebb_gate_close(nullptr);
}

TEST(Process, KnowsTheLivingAndTheDead) {
  uint64_t ticks = 0;
  EXPECT_STATUS(EBB_OK, ebb_process_start(::getpid(), &ticks, &error));
  EXPECT_GT(ticks, 0U);
  EXPECT_STATUS(EBB_NOT_FOUND, ebb_process_start(-1, &ticks, &error));
  const pid_t zombie = in_child([] { return 0; });
  EXPECT_TRUE(until([zombie] { return !ebb::process_start(zombie); }));
  ::waitpid(zombie, nullptr, 0);
  EXPECT_FALSE(ebb::process_start(zombie));
}

TEST(Status, HasANameForEachCode) {
  for (int32_t code = EBB_INTERNAL; code <= EBB_OK; ++code) {
    EXPECT_STRNE(ebb_status_name(code), "EBB_UNKNOWN") << code;
  }
  EXPECT_STREQ(ebb_status_name(EBB_INTERNAL), "EBB_INTERNAL");
  EXPECT_STREQ(ebb_status_name(EBB_CORRUPT), "EBB_CORRUPT");
  EXPECT_STREQ(ebb_status_name(1), "EBB_UNKNOWN");
  EXPECT_STREQ(ebb_status_name(EBB_INTERNAL - 1), "EBB_UNKNOWN");
}

}  // namespace
