#include "page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <optional>

#include "crc32c.h"
#include "file.h"
#include "process.h"
#include "status.h"

namespace ebb {

namespace {

constexpr uint64_t kFree = 0;
constexpr uint64_t kClaiming = 1;  // no packed identity: the pid part is 0
constexpr int kStartBits = 42;     // 1,394 years of clock ticks; the other 22 bits hold any Linux pid
constexpr int kReadTries = 1 << 20;

uint64_t pack(uint64_t pid, uint64_t start) noexcept {
  return pid << kStartBits | (start & ((1ULL << kStartBits) - 1));
}

PageLayout* map(int fd, const std::string& path) {
  void* address = ::mmap(nullptr, sizeof(PageLayout), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) fail_errno("cannot map " + path);
  return static_cast<PageLayout*>(address);
}

void check_header(int fd, const std::string& path) {
  struct {
    uint64_t magic;
    uint32_t abi;
    uint32_t size;
  } header = {};
  const uint64_t size = file_size(fd, path);
  const uint64_t got = read_at(fd, &header, sizeof header, 0, path);
  if (got < sizeof header || header.magic != kPageMagic) fail(EBB_FOREIGN, path + " is not a control page");
  if (header.abi != EBB_ABI_VERSION || header.size != sizeof(PageLayout)) {
    fail(EBB_WRONG_ABI, path + " is a control page of ABI " + std::to_string(header.abi) +
                            ", this library has " + std::to_string(EBB_ABI_VERSION));
  }
  if (size != sizeof(PageLayout)) {
    fail(EBB_TRUNCATED, path + " has " + std::to_string(size) + " bytes, a control page has " +
                            std::to_string(sizeof(PageLayout)));
  }
}

uint64_t checksum(const ebb_measurement& measurement) noexcept {
  return crc32c(&measurement, sizeof measurement, 0);
}

}  // namespace

std::unique_ptr<Page> Page::create(const std::string& path) {
  Unborn unborn(path);
  if (::ftruncate(unborn.fd(), sizeof(PageLayout)) != 0) fail_errno("cannot size " + path);
  struct {
    uint64_t magic = kPageMagic;
    uint32_t abi = EBB_ABI_VERSION;
    uint32_t size = sizeof(PageLayout);
  } const header;
  write_at(unborn.fd(), &header, sizeof header, 0, path);
  const File file = unborn.publish(false);
  return std::unique_ptr<Page>(new Page(map(file.fd(), path)));
}

std::unique_ptr<Page> Page::open(const std::string& path) {
  const File file = open_regular(path, O_RDWR);
  check_header(file.fd(), path);
  return std::unique_ptr<Page>(new Page(map(file.fd(), path)));
}

Page::~Page() { ::munmap(layout_, sizeof(PageLayout)); }

uint64_t Page::get(int32_t field) const {
  if (field < 0 || field >= EBB_F_COUNT) fail(EBB_INVALID_ARGUMENT, "no field " + std::to_string(field));
  return layout_->fields[static_cast<size_t>(field)].load();
}

Word& Page::writable(int32_t field) {
  if (field < 0 || field >= EBB_F_COUNT) fail(EBB_INVALID_ARGUMENT, "no field " + std::to_string(field));
  if (field == EBB_F_ADMISSION)
    fail(EBB_INVALID_ARGUMENT, "admission changes by opening and closing the gate only");
  return layout_->fields[static_cast<size_t>(field)];
}

void Page::set(int32_t field, uint64_t value) { writable(field).store(value); }

uint64_t Page::add(int32_t field, uint64_t delta) { return writable(field).fetch_add(delta) + delta; }

void Page::set_admission(bool open) { layout_->fields[EBB_F_ADMISSION].store(open ? 1 : 0); }

bool Page::admission() const { return layout_->fields[EBB_F_ADMISSION].load() != 0; }

// True when the slot's process is known to be dead; the slot is then free, unless someone was faster. A
// process of another pid namespace cannot be looked up from here: it is taken for alive, and its own side
// reclaims.
bool Page::reclaim_if_dead(GateSlot& slot, uint64_t identity) {
  if (slot.pid_namespace.load() != pid_namespace()) return false;
  const auto pid = static_cast<int32_t>(identity >> kStartBits);
  const std::optional<uint64_t> start = process_start(pid);
  if (start && pack(static_cast<uint64_t>(pid), *start) == identity) return false;
  slot.identity.compare_exchange_strong(identity, kFree);
  return true;
}

uint64_t Page::inflight() {
  uint64_t sum = 0;
  for (GateSlot& slot : layout_->slots) {
    uint64_t identity = slot.identity.load();
    while (identity != kFree && identity != kClaiming) {
      const uint64_t inside = slot.inflight.load();
      if (inside == 0 || reclaim_if_dead(slot, identity)) break;
      const uint64_t now = slot.identity.load();
      if (now == identity) {
        sum += inside;
        break;
      }
      identity = now;  // the slot changed hands in between: look again
    }
  }
  return sum;
}

GateSlot& Page::claim() {
  const auto pid = static_cast<int32_t>(::getpid());
  const std::optional<uint64_t> start = process_start(pid);
  if (!start) fail(EBB_IO, "this process is not in /proc");
  for (GateSlot& slot : layout_->slots) {
    uint64_t identity = slot.identity.load();
    if (identity == kClaiming) continue;
    if (identity != kFree && !reclaim_if_dead(slot, identity)) continue;
    uint64_t expected = kFree;
    if (!slot.identity.compare_exchange_strong(expected, kClaiming)) continue;
    // Nobody judges the slot by its namespace or counts it before its identity is there.
    slot.pid_namespace.store(pid_namespace());
    slot.inflight.store(0);
    slot.identity.store(pack(static_cast<uint64_t>(pid), *start));
    return slot;
  }
  fail(EBB_FULL, "all " + std::to_string(EBB_GATE_SLOTS) + " gate slots are taken by live processes");
}

void Page::publish(const ebb_measurement& measurement) {
  const uint64_t number = layout_->published.load(std::memory_order_relaxed) + 1;
  MeasurementCell& cell = layout_->cells[number % 2];
  std::array<uint64_t, MeasurementCell::kWords> words;
  std::memcpy(words.data(), &measurement, sizeof measurement);
  // A reader that sees any of these words must then see that a later number was begun: it compares numbers.
  std::atomic_thread_fence(std::memory_order_release);
  for (size_t i = 0; i < words.size(); ++i) cell.words[i].store(words[i], std::memory_order_relaxed);
  cell.check.store(checksum(measurement), std::memory_order_relaxed);
  layout_->published.store(number, std::memory_order_release);
}

// False when the cell was written again while it was read.
bool Page::read_cell(uint64_t number, ebb_measurement* measurement) const {
  const MeasurementCell& cell = layout_->cells[number % 2];
  std::array<uint64_t, MeasurementCell::kWords> words;
  for (size_t i = 0; i < words.size(); ++i) words[i] = cell.words[i].load(std::memory_order_relaxed);
  const uint64_t check = cell.check.load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  std::memcpy(measurement, words.data(), sizeof *measurement);
  return layout_->published.load(std::memory_order_relaxed) == number && check == checksum(*measurement);
}

ebb_measurement Page::measurement() const {
  ebb_measurement measurement = {};
  for (int tries = 0; tries < kReadTries; ++tries) {
    const uint64_t number = layout_->published.load(std::memory_order_acquire);
    if (number == 0) fail(EBB_NOT_FOUND, "nothing was measured yet");
    if (read_cell(number, &measurement)) return measurement;
  }
  fail(EBB_CORRUPT, "the measurement does not match its checksum: two writers?");
}

}  // namespace ebb
