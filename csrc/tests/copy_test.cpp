#include "copy.h"

#include <algorithm>

#include "crc32c.h"
#include "fanout.h"
#include "status.h"
#include "support.h"

namespace {

using ebb_test::Bytes;
using ebb_test::kMiB;
using ebb_test::random_bytes;

TEST(Copy, IsExactAtAnySizeAndAlignment) {
  const Bytes source = random_bytes(9000);
  for (const size_t size : {0U, 1U, 63U, 64U, 1023U, 1024U, 1025U, 1087U, 2048U, 8191U}) {
    for (const size_t shift : {0U, 1U, 31U, 63U}) {
      Bytes target(size + 256, 0xEE);
      ebb::copy_nt(target.data() + shift, source.data() + shift, size);
      ASSERT_TRUE(std::equal(source.begin() + static_cast<long>(shift),
                             source.begin() + static_cast<long>(shift + size),
                             target.begin() + static_cast<long>(shift)));
      target.erase(target.begin() + static_cast<long>(shift),
                   target.begin() + static_cast<long>(shift + size));
      ASSERT_EQ(target, Bytes(256, 0xEE)) << size << " at " << shift;
    }
  }
}

// At sizes and alignments on both sides of what the long streams take.
TEST(Copy, SumsTheBytesThatItCopies) {
  const Bytes source = random_bytes(4 * kMiB + 4096);
  Bytes memory(source.size() + 4096);
  unsigned char* aligned = memory.data() + 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64;
  for (const size_t size : {0U, 1U, 1000U, 65536U, 65537U, 262143U, 262144U, 262145U, 300001U, 4194304U}) {
    for (const size_t shift : {0U, 1U, 32U}) {
      for (const size_t from : {0U, 3U}) {
        unsigned char* target = aligned + shift;
        std::fill(memory.begin(), memory.end(), static_cast<unsigned char>(0xEE));
        const uint32_t crc = ebb::copy_nt_crc32c(target, source.data() + from, size, 0xABCDU);
        ASSERT_EQ(crc, ebb::crc32c_portable(source.data() + from, size, 0xABCDU)) << size << " at " << shift;
        ASSERT_TRUE(std::equal(target, target + size, source.data() + from)) << size << " at " << shift;
        ASSERT_TRUE(
            std::all_of(target + size, target + size + 64, [](unsigned char byte) { return byte == 0xEE; }));
      }
    }
  }
}

TEST(Copy, SharesTheWorkAmongThreads) {
  const Bytes source = random_bytes(9 * kMiB + 123);
  for (const int32_t threads : {1, 2, 7}) {
    Bytes target(source.size());
    EXPECT_STATUS(EBB_OK, ebb_copy(target.data(), source.data(), source.size(), threads, &error));
    EXPECT_EQ(target, source);
  }
}

TEST(Copy, RefusesBadArguments) {
  char byte = 0;
  EXPECT_STATUS(EBB_OK, ebb_copy(nullptr, nullptr, 0, 1, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_copy(nullptr, &byte, 1, 1, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_copy(&byte, nullptr, 1, 1, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_copy(&byte, &byte, 1, 0, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_copy(&byte, &byte, 1, ebb::kMaxThreads + 1, &error));
}

TEST(FanOut, HandsOutEachNumberOnce) {
  std::vector<std::atomic<int>> seen(1000);
  ebb::Counter counter(seen.size());
  ebb::fan_out(4, counter, [&](uint64_t number) { ++seen[number]; });
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](const auto& count) { return count == 1; }));
}

TEST(FanOut, NothingToDoIsFine) {
  ebb::Counter counter(0);
  ebb::fan_out(2, counter, [](uint64_t) { FAIL(); });
  ebb::fan_out_nice(2, 5, counter, [](uint64_t) { FAIL(); });
}

TEST(FanOut, ThrowsTheFirstFailureAfterAllHaveEnded) {
  std::atomic<int> running{0};
  ebb::Counter counter(100000);
  const auto worker = [&](uint64_t number) {
    ++running;
    if (number == 50) ebb::fail(EBB_CORRUPT, "number 50");
    --running;
  };
  try {
    ebb::fan_out(3, counter, worker);
    FAIL();
  } catch (const ebb::Failure& failure) {
    EXPECT_EQ(failure.code(), EBB_CORRUPT);
    EXPECT_STREQ(failure.what(), "number 50");
  }
  EXPECT_EQ(running, 1);
  uint64_t next = 0;
  EXPECT_FALSE(counter.take(&next));
}

}  // namespace
