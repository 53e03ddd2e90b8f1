#include <sys/mman.h>

#include <algorithm>
#include <thread>

#include "support.h"

namespace {

using ebb_test::ArenaHandle;
using ebb_test::BrokenDevice;
using ebb_test::Bytes;
using ebb_test::kGiB;
using ebb_test::kMiB;
using ebb_test::random_bytes;

constexpr int32_t kWeights = EBB_TAG_WEIGHTS;
constexpr int32_t kKv = EBB_TAG_KV;

TEST(Arena, ReleaseGivesBackAndRestoreKeepsAddresses) {
  ArenaHandle arena;
  const Bytes bytes = random_bytes(10 * kMiB);
  unsigned char* address = arena.place(kWeights, bytes);
  EXPECT_GE(arena.stats(kWeights).resident, bytes.size());
  ASSERT_OK(ebb_arena_release(arena.get(), kWeights, &error));
  EXPECT_EQ(arena.stats(kWeights).resident, 0U);
  EXPECT_EQ(arena.stats(kWeights).released, 1U);
  ASSERT_OK(ebb_arena_restore(arena.get(), kWeights, 1, 0, &error));
  EXPECT_TRUE(std::all_of(address, address + bytes.size(), [](unsigned char byte) { return byte == 0; }));
}

TEST(ArenaDeathTest, TouchingReleasedMemoryEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        ArenaHandle arena;
        unsigned char* address = arena.allocate(kWeights, 64);
        ebb_arena_release(arena.get(), kWeights, nullptr);
        *const_cast<volatile unsigned char*>(address) = 1;
      },
      "");
}

TEST(Arena, PrefaultTakesTheSpan) {
  ArenaHandle arena;
  arena.allocate(kKv, 9 * kMiB);
  ASSERT_OK(ebb_arena_release(arena.get(), kKv, &error));
  ASSERT_OK(ebb_arena_restore(arena.get(), kKv, 3, 1, &error));
  EXPECT_EQ(arena.stats(kKv).resident, 10 * kMiB);
}

TEST(Arena, ReserveIsRoundedUpToTheGranule) {
  ArenaHandle arena(nullptr, 1);
  EXPECT_EQ(arena.stats(kKv).reserved, 2 * kMiB);
  void* base = nullptr;
  ASSERT_OK(ebb_arena_base(arena.get(), kKv, &base, &error));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(base) % (2 * kMiB), 0U);
}

TEST(Arena, ThreadsMayAllocateAtOnce) {
  ArenaHandle arena;
  std::vector<std::thread> threads;
  std::vector<std::vector<unsigned char*>> blocks(4);
  for (auto& mine : blocks) {
    threads.emplace_back([&arena, &mine] {
      for (int i = 0; i < 500; ++i) mine.push_back(arena.allocate(kWeights, 128));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<unsigned char*> all;
  for (const auto& mine : blocks) all.insert(all.end(), mine.begin(), mine.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
  EXPECT_EQ(arena.stats(kWeights).live, 4U * 500U * 128U);
}

TEST(Arena, RefusesBadArguments) {
  ebb_arena* none = nullptr;
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_arena_create(nullptr, 0, &none, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_arena_create(nullptr, UINT64_MAX, &none, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_arena_create(nullptr, kGiB, nullptr, &error));
  EXPECT_EQ(none, nullptr);
  ArenaHandle arena;
  void* address = nullptr;
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_arena_allocate(arena.get(), -1, 64, 64, &address, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_arena_allocate(arena.get(), 2, 64, 64, &address, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_arena_allocate(nullptr, 0, 64, 64, &address, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_arena_free(arena.get(), &address, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_arena_release(arena.get(), 9, &error));
  EXPECT_STATUS(EBB_FULL, ebb_arena_allocate(arena.get(), 0, kGiB + 1, 64, &address, &error));
  EXPECT_EQ(address, nullptr);
  ebb_arena_destroy(nullptr);
}

TEST(Arena, RefusesAnotherDeviceAbi) {
  ebb_device_ops ops = *ebb_host_device();
  ebb_arena* none = nullptr;
  ops.abi += 1;
  EXPECT_STATUS(EBB_WRONG_ABI, ebb_arena_create(&ops, kGiB, &none, &error));
  ops = *ebb_host_device();
  ops.granule = 3000;
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_arena_create(&ops, kGiB, &none, &error));
}

// A device that fails

TEST(BrokenDevice, ThatReservesNothingMakesNoArena) {
  BrokenDevice device;
  device.fail("reserve");
  ebb_arena* none = nullptr;
  EXPECT_STATUS(EBB_NO_MEMORY, ebb_arena_create(&device.ops(), kGiB, &none, &error));
  EXPECT_EQ(none, nullptr);
}

TEST(BrokenDevice, ThatDoesNotReleaseIsNeverCalledReleased) {
  BrokenDevice device;
  ArenaHandle arena(&device.ops());
  const Bytes bytes = random_bytes(kMiB);
  unsigned char* address = arena.place(kWeights, bytes);
  device.fail("release");
  EXPECT_STATUS(EBB_IO, ebb_arena_release(arena.get(), kWeights, &error));
  EXPECT_EQ(arena.stats(kWeights).released, 0U);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), address));
  device.fail("");
  EXPECT_STATUS(EBB_OK, ebb_arena_release(arena.get(), kWeights, &error));
}

TEST(BrokenDevice, ThatDoesNotRestoreStaysReleased) {
  BrokenDevice device;
  ArenaHandle arena(&device.ops());
  arena.allocate(kWeights, kMiB);
  ASSERT_OK(ebb_arena_release(arena.get(), kWeights, &error));
  device.fail("restore");
  EXPECT_STATUS(EBB_NO_MEMORY, ebb_arena_restore(arena.get(), kWeights, 1, 0, &error));
  EXPECT_EQ(arena.stats(kWeights).released, 1U);
}

TEST(BrokenDevice, ThatDoesNotPrefaultSaysSo) {
  BrokenDevice device;
  ArenaHandle arena(&device.ops());
  arena.allocate(kWeights, kMiB);
  ASSERT_OK(ebb_arena_release(arena.get(), kWeights, &error));
  device.fail("prefault");
  EXPECT_STATUS(EBB_NO_MEMORY, ebb_arena_restore(arena.get(), kWeights, 2, 1, &error));
  EXPECT_STATUS(EBB_OK, ebb_arena_release(arena.get(), kWeights, &error));
}

TEST(BrokenDevice, ThatDoesNotDiscardStillFreesTheBlock) {
  BrokenDevice device;
  ArenaHandle arena(&device.ops());
  unsigned char* address = arena.allocate(kWeights, 4 * kMiB);
  device.fail("discard");
  EXPECT_STATUS(EBB_OK, ebb_arena_free(arena.get(), address, &error));
  EXPECT_EQ(arena.stats(kWeights).live, 0U);
}

}  // namespace
