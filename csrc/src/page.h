// The control page: one mapped file that engine, launcher and agent share. Its layout is fixed by
// EBB_ABI_VERSION.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "ebbtide.h"

namespace ebb {

constexpr uint64_t kPageMagic = 0x3145474150424245;  // "EBBPAGE1" in memory order
constexpr size_t kLine = 64;

using Word = std::atomic<uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8);

struct alignas(kLine) GateSlot {
  Word identity;  // kFree, kClaiming, or the packed pid and start time of the process that owns the slot
  Word pid_namespace;
  Word inflight;
};

// Two of them: the writer fills the one that nobody reads, so a writer killed midway leaves the other whole.
struct alignas(kLine) MeasurementCell {
  static constexpr size_t kWords = sizeof(ebb_measurement) / sizeof(uint64_t);
  std::array<Word, kWords> words;
  Word check;
};

struct PageLayout {
  uint64_t magic;
  uint32_t abi;
  uint32_t size;
  alignas(kLine) std::array<Word, 32> fields;
  alignas(kLine) Word published;  // measurements so far; the last is in cell `published % 2`
  std::array<MeasurementCell, 2> cells;
  std::array<GateSlot, EBB_GATE_SLOTS> slots;
};
static_assert(EBB_F_COUNT <= 32);
static_assert(sizeof(PageLayout) == 64 + 256 + 64 + 2 * 64 + EBB_GATE_SLOTS * 64, "the layout is an ABI");

class Page {
 public:
  static std::unique_ptr<Page> create(const std::string& path);
  static std::unique_ptr<Page> open(const std::string& path);
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  ~Page();

  [[nodiscard]] uint64_t get(int32_t field) const;
  void set(int32_t field, uint64_t value);
  uint64_t add(int32_t field, uint64_t delta);
  void set_admission(bool open);
  [[nodiscard]] bool admission() const;
  // Not const: it reclaims the slots of dead processes.
  uint64_t inflight();
  void publish(const ebb_measurement& measurement);
  [[nodiscard]] ebb_measurement measurement() const;

  // A slot for this process, with nothing in flight.
  GateSlot& claim();

 private:
  explicit Page(PageLayout* layout) noexcept : layout_(layout) {}
  Word& writable(int32_t field);
  bool read_cell(uint64_t number, ebb_measurement* measurement) const;
  bool reclaim_if_dead(GateSlot& slot, uint64_t identity);

  PageLayout* layout_;
};

}  // namespace ebb
