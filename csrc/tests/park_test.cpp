#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "crc32c.h"
#include "park_file.h"
#include "support.h"

namespace {

using ebb_test::ArenaHandle;
using ebb_test::BrokenDevice;
using ebb_test::Bytes;
using ebb_test::Folder;
using ebb_test::kMiB;
using ebb_test::random_bytes;
using ebb_test::read_file;
using ebb_test::write_file;

constexpr int32_t kWeights = EBB_TAG_WEIGHTS;
constexpr size_t kSize = 9 * kMiB + 192;  // three chunks, the last one short

// Parked bytes in a folder: in memory, where the file is mapped, or on disk, where it is read.
class ParkTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { address_ = arena_.place(kWeights, bytes_); }
  void TearDown() override { ebb_parked_close(parked_); }

  int32_t create(ebb_error* error, const uint32_t* cancel = nullptr, int32_t threads = 2) {
    return ebb_parked_create(path_.c_str(), arena_.get(), kWeights, 5, 6, threads, 1, cancel, &parked_,
                             error);
  }
  int32_t open(ebb_error* error) {
    ebb_parked_close(parked_);
    parked_ = nullptr;
    return ebb_parked_open(path_.c_str(), &parked_, error);
  }
  int32_t restore(ebb_error* error, int32_t verify = 1) {
    return ebb_parked_restore(parked_, arena_.get(), kWeights, 2, verify, error);
  }
  int32_t release(ebb_error* error) { return ebb_arena_release(arena_.get(), kWeights, error); }
  [[nodiscard]] bool holds(const Bytes& bytes) const {
    return std::equal(bytes.begin(), bytes.end(), address_);
  }
  void poke(off_t offset) {
    const int fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
    unsigned char byte = 0;
    ASSERT_EQ(::pread(fd, &byte, 1, offset), 1);
    byte ^= 0x40;
    ASSERT_EQ(::pwrite(fd, &byte, 1, offset), 1);
    ::close(fd);
  }

  Folder folder_{GetParam()};
  std::string path_ = folder_.file("weights.park");
  BrokenDevice device_;
  ArenaHandle arena_{&device_.ops()};
  Bytes bytes_ = random_bytes(kSize);
  unsigned char* address_ = nullptr;
  ebb_parked* parked_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Places, ParkTest, testing::Values("/dev/shm", "."),
                         [](const auto& place) { return place.param[0] == '.' ? "Disk" : "Memory"; });

TEST_P(ParkTest, RestoresBitExact) {
  ASSERT_OK(create(&error));
  ebb_parked_info info = {};
  ASSERT_OK(ebb_parked_get_info(parked_, &info, &error));
  EXPECT_EQ(info.version, 5U);
  EXPECT_EQ(info.layout, 6U);
  EXPECT_EQ(info.span, kSize);
  EXPECT_EQ(info.chunks, 3U);
  EXPECT_EQ(info.file_bytes, read_file(path_).size());
  for (const int32_t verify : {0, 1}) {
    ASSERT_OK(release(&error));
    ASSERT_OK(restore(&error, verify));
    EXPECT_TRUE(holds(bytes_));
  }
}

TEST_P(ParkTest, RestoresFromAnotherOpening) {
  ASSERT_OK(create(&error));
  ASSERT_OK(open(&error));
  ASSERT_OK(ebb_parked_verify(parked_, 0, 2, &error));
  ASSERT_OK(release(&error));
  ASSERT_OK(restore(&error));
  EXPECT_TRUE(holds(bytes_));
  int32_t same = 0;
  ASSERT_OK(ebb_parked_matches(parked_, arena_.get(), kWeights, 2, &same, &error));
  EXPECT_EQ(same, 1);
}

// Wherever a byte of the file is wrong, somebody notices before it is used.
TEST_P(ParkTest, NoticesEveryDamagedPart) {
  ASSERT_OK(create(&error));
  const auto size = static_cast<off_t>(read_file(path_).size());
  for (off_t offset = 0; offset < size; offset += offset < 5000 ? 7 : 250007) {
    if (offset >= 72 && offset < 4096) continue;  // between header and table: no byte that anyone uses
    if (offset >= 4096 + 12 && offset < 8192) continue;
    poke(offset);
    ebb_error error = {};
    const int32_t status = open(&error);
    if (status == EBB_OK) {
      EXPECT_EQ(ebb_parked_verify(parked_, 0, 1, &error), EBB_CORRUPT) << offset;
      EXPECT_EQ(restore(&error), EBB_CORRUPT) << offset;
      EXPECT_EQ(arena_.stats(kWeights).released, 1U);
    } else {
      EXPECT_TRUE(status == EBB_CORRUPT || status == EBB_FOREIGN || status == EBB_WRONG_ABI) << offset;
    }
    poke(offset);
  }
  ASSERT_OK(open(&error));
  ASSERT_OK(restore(&error));
  EXPECT_TRUE(holds(bytes_));
}

TEST_P(ParkTest, NoticesAFileCutShortAtAnyTime) {
  ASSERT_OK(create(&error));
  ASSERT_EQ(::truncate(path_.c_str(), 5 * 1000 * 1000), 0);
  EXPECT_STATUS(EBB_TRUNCATED, restore(&error));
  EXPECT_EQ(arena_.stats(kWeights).released, 1U);
  EXPECT_STATUS(EBB_TRUNCATED, ebb_parked_verify(parked_, 0, 2, &error));
  EXPECT_STATUS(EBB_TRUNCATED, open(&error));
}

TEST_P(ParkTest, ADeviceThatFailsMidwayLeavesNothingHalf) {
  ASSERT_OK(create(&error));
  device_.fail("copy_in");
  EXPECT_STATUS(EBB_IO, restore(&error));
  EXPECT_EQ(arena_.stats(kWeights).released, 1U);
  EXPECT_EQ(arena_.stats(kWeights).resident, 0U);
  device_.fail("");
  ASSERT_OK(restore(&error));
  EXPECT_TRUE(holds(bytes_));
}

TEST_P(ParkTest, ADeviceThatCannotBeReadMakesNoFile) {
  device_.fail("copy_out");
  EXPECT_STATUS(EBB_IO, create(&error));
  EXPECT_EQ(parked_, nullptr);
  EXPECT_EQ(folder_.count(), 0U);
}

TEST_P(ParkTest, AFailureKeepsTheOlderCopy) {
  ASSERT_OK(create(&error));
  ebb_parked_close(parked_);
  parked_ = nullptr;
  const uint32_t cancel = 1;
  EXPECT_STATUS(EBB_CANCELLED, create(&error, &cancel));
  EXPECT_EQ(folder_.count(), 1U);
  ASSERT_OK(open(&error));
  ASSERT_OK(ebb_parked_verify(parked_, 0, 1, &error));
}

TEST_P(ParkTest, AnotherSpanChangesNothing) {
  ASSERT_OK(create(&error));
  arena_.allocate(kWeights, 64);
  EXPECT_STATUS(EBB_MISMATCH, restore(&error));
  EXPECT_TRUE(holds(bytes_));
  ASSERT_OK(release(&error));
  EXPECT_STATUS(EBB_MISMATCH, restore(&error));
  EXPECT_EQ(arena_.stats(kWeights).released, 1U);
}

TEST_P(ParkTest, RefusesBadArguments) {
  ebb_error error = {};
  EXPECT_EQ(create(&error, nullptr, 0), EBB_INVALID_ARGUMENT);
  EXPECT_EQ(folder_.count(), 0U);
  ASSERT_EQ(create(&error), EBB_OK);
  EXPECT_EQ(ebb_parked_get_info(parked_, nullptr, &error), EBB_INVALID_ARGUMENT);
  EXPECT_EQ(ebb_parked_verify(nullptr, 0, 1, &error), EBB_INVALID_ARGUMENT);
  EXPECT_EQ(ebb_parked_verify(parked_, 0, 0, &error), EBB_INVALID_ARGUMENT);
  EXPECT_EQ(ebb_parked_matches(parked_, arena_.get(), kWeights, 1, nullptr, &error), EBB_INVALID_ARGUMENT);
  EXPECT_EQ(ebb_parked_restore(parked_, nullptr, kWeights, 1, 1, &error), EBB_INVALID_ARGUMENT);
  EXPECT_EQ(ebb_parked_restore(parked_, arena_.get(), 5, 1, 1, &error), EBB_INVALID_ARGUMENT);
  EXPECT_TRUE(holds(bytes_));
  ebb_parked_close(nullptr);
}

TEST_P(ParkTest, ARunningFillHoldsOffEverythingElse) {
  ASSERT_OK(create(&error));
  struct Held {
    ArenaHandle& arena;
    std::atomic<int> calls{0};
  } held{arena_};
  // The device asks, in the middle of the restore, for what must wait.
  device_.ops().context = &held;
  device_.ops().copy_in = [](void* context, void* device, const void* host, uint64_t bytes,
                             uint32_t* crc) -> int32_t {
    auto& inside = *static_cast<Held*>(context);
    if (inside.calls++ == 0) {
      void* address = nullptr;
      EXPECT_EQ(ebb_arena_release(inside.arena.get(), kWeights, nullptr), EBB_BUSY);
      EXPECT_EQ(ebb_arena_restore(inside.arena.get(), kWeights, 1, 0, nullptr), EBB_BUSY);
      EXPECT_EQ(ebb_arena_allocate(inside.arena.get(), kWeights, 64, 64, &address, nullptr), EBB_BUSY);
    }
    return ebb_host_device()->copy_in(nullptr, device, host, bytes, crc);
  };
  device_.ops().restore = ebb_host_device()->restore;
  ASSERT_OK(restore(&error));
  EXPECT_GE(held.calls, 3);
  device_.ops() = *ebb_host_device();
  EXPECT_TRUE(holds(bytes_));
}

// Random headers with a right checksum must be refused or be the one that was written: never crash.
TEST_P(ParkTest, SurvivesHeadersMadeByAnAttacker) {
  ASSERT_OK(create(&error));
  const Bytes good = read_file(path_);
  std::mt19937_64 random(3);
  for (int round = 0; round < 100; ++round) {
    Bytes bad = good;
    ebb::ParkHeader header = {};
    std::memcpy(&header, bad.data(), sizeof header);
    uint64_t* const words[] = {&header.span, &header.chunk_bytes, &header.chunks, &header.data_offset};
    const uint64_t odd[] = {0, 1, kSize + 1, uint64_t{1} << 62, UINT64_MAX, random() % (8 * kMiB)};
    for (uint64_t* word : words) {
      if (random() % 2 == 0) *word = odd[random() % 6];
    }
    const bool changed = std::memcmp(&header, good.data(), sizeof header) != 0;
    header.header_crc = ebb::crc32c(&header, offsetof(ebb::ParkHeader, header_crc), 0);
    std::memcpy(bad.data(), &header, sizeof header);
    bad.resize(random() % 2 == 0 ? good.size() : 4096 + random() % 100000);
    write_file(path_, bad);
    ebb_error error = {};
    const int32_t status = open(&error);
    ASSERT_TRUE(status != EBB_OK || (!changed && bad.size() == good.size())) << round;
  }
}

}  // namespace
