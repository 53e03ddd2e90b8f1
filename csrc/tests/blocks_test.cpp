#include "blocks.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace {

using ebb::Blocks;
using ebb::Extent;

TEST(Blocks, TakesTheLowestPlaceThatFits) {
  Blocks blocks(4096);
  EXPECT_EQ(blocks.allocate(64, 64)->offset, 0U);
  EXPECT_EQ(blocks.allocate(128, 64)->offset, 64U);
  EXPECT_EQ(blocks.allocate(64, 64)->offset, 192U);
  blocks.free(64);
  EXPECT_EQ(blocks.allocate(256, 64)->offset, 256U);
  EXPECT_EQ(blocks.allocate(64, 64)->offset, 64U);
}

TEST(Blocks, RoundsUpToTheUnit) {
  Blocks blocks(4096);
  EXPECT_EQ(blocks.allocate(1, 64)->size, 64U);
  EXPECT_EQ(blocks.allocate(65, 64)->size, 128U);
  EXPECT_EQ(blocks.live(), 192U);
  EXPECT_EQ(blocks.count(), 2U);
}

TEST(Blocks, AlignsAndKeepsTheGapForSmallBlocks) {
  Blocks blocks(8192);
  EXPECT_EQ(blocks.allocate(64, 64)->offset, 0U);
  EXPECT_EQ(blocks.allocate(64, 4096)->offset, 4096U);
  EXPECT_EQ(blocks.allocate(64, 64)->offset, 64U);
  EXPECT_EQ(blocks.span(), 4160U);
}

TEST(Blocks, RefusesWhatDoesNotFit) {
  Blocks blocks(4096);
  EXPECT_FALSE(blocks.allocate(0, 64));
  EXPECT_FALSE(blocks.allocate(4097, 64));
  EXPECT_FALSE(blocks.allocate(UINT64_MAX, 64));
  EXPECT_TRUE(blocks.allocate(4096, 64));
  EXPECT_FALSE(blocks.allocate(1, 64));
  EXPECT_EQ(blocks.span(), 4096U);
}

TEST(Blocks, MergesBothNeighbours) {
  Blocks blocks(4096);
  for (int i = 0; i < 4; ++i) blocks.allocate(64, 64);
  EXPECT_EQ(blocks.free(0)->size, 64U);
  EXPECT_EQ(blocks.free(128)->size, 64U);
  const Extent merged = *blocks.free(64);
  EXPECT_EQ(merged.offset, 0U);
  EXPECT_EQ(merged.size, 192U);
  EXPECT_EQ(blocks.free(192)->size, 4096U);
  EXPECT_EQ(blocks.span(), 0U);
  EXPECT_EQ(blocks.live(), 0U);
}

TEST(Blocks, FreesOnlyLiveBlocks) {
  Blocks blocks(4096);
  blocks.allocate(128, 64);
  EXPECT_FALSE(blocks.free(64));
  EXPECT_TRUE(blocks.free(0));
  EXPECT_FALSE(blocks.free(0));
}

// Against a plain model, over many random steps: no overlap, the right span, and everything comes back.
TEST(Blocks, BehavesLikeAPlainModel) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    Blocks blocks(uint64_t{1} << 20);
    std::map<uint64_t, uint64_t> live;
    for (int step = 0; step < 400; ++step) {
      if (live.empty() || random() % 3 != 0) {
        const uint64_t align = uint64_t{64} << (random() % 7);
        const auto block = blocks.allocate(1 + random() % 20000, align);
        if (!block) continue;
        ASSERT_EQ(block->offset % align, 0U);
        const auto after = live.lower_bound(block->offset);
        ASSERT_TRUE(after == live.end() || after->first >= block->offset + block->size);
        ASSERT_TRUE(after == live.begin() ||
                    std::prev(after)->first + std::prev(after)->second <= block->offset);
        live.emplace(block->offset, block->size);
      } else {
        const auto victim = std::next(live.begin(), static_cast<long>(random() % live.size()));
        ASSERT_TRUE(blocks.free(victim->first));
        live.erase(victim);
      }
      ASSERT_EQ(blocks.count(), live.size());
      const uint64_t end = live.empty() ? 0 : std::prev(live.end())->first + std::prev(live.end())->second;
      ASSERT_EQ(blocks.span(), end);
    }
    for (const auto& [offset, size] : live) ASSERT_TRUE(blocks.free(offset));
    ASSERT_TRUE(blocks.allocate(uint64_t{1} << 20, 64));
  }
}

}  // namespace
